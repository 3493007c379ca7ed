"""Cocotb side of the recorded kernels: `vector_core.npz` through the gates, all of it in one simulation.

L1 is loaded as bursts and shown by a VDRAIN afterwards; memory and the end of each kernel are compared as the recording
says, and the kernel's cycles with the model's.
"""

import os
from pathlib import Path

import cocotb
from support.counted import report
from support.links import Links
from vector_scenario import AT, HOST, INST_DEPTH, PORT

from kohakutpu.conformance.vector import BURST_DATA, LATENCY, TXN, CoreProgram, burst, integer, programs, replay
from kohakutpu.isa import vector as isa
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import CU_DATA, CU_SIGNAL, SIGNAL_ON_COMPLETE, SignalCode
from kohakutpu.isa.vector import Opcode

GOLDEN = Path(os.environ["GOLDEN"])
BUDGET = 20_000
SHOWN = 1 << 39  # where L1 is drained to; no recording goes there
HALF = 256  # words of a burst, and of a VDRAIN


class Bench:
    """What surrounds the core: instructions by credit, a memory port that answers after `LATENCY` cycles."""

    def __init__(self, links: Links):
        self.links = links
        self.source = links.sources["in_link"]
        self.memory: dict[int, int] = {}
        self.signals: list[Flit] = []
        self.waiting: list[Flit] = []
        self.flying = 0
        self.received = 0
        self.targets: list[int] = []
        self.answered = 0
        links.sinks["out_link"].on_flit = self.on_flit

    def on_flit(self, cycle: int, flit: Flit) -> None:
        if flit.type == FlitType.CU_SIGNAL:
            if CU_SIGNAL.get(flit.payload, "code") == SignalCode.DATA_RECEIVED:
                self.received += 1
                return
            self.signals.append(flit)
            self.flying -= 1
            self._go_on()
        elif flit.type == FlitType.MEM_RD_REQ:
            addresses = burst(flit)
            for beat, address in enumerate(addresses):
                self.answered = max(self.answered + 1, cycle + LATENCY)
                last = int(beat + 1 == len(addresses))
                answer = Flit(AT, PORT, FlitType.MEM_RD_RESP, flit.txn, last, 0, self.memory.get(address, 0))
                self.source.send(answer, at=self.answered - 1)
        elif flit.type == FlitType.MEM_WR_REQ:
            self.targets += burst(flit)
        elif flit.type == FlitType.MEM_WR_DATA:
            self.memory[self.targets.pop(0)] = flit.payload

    def _go_on(self) -> None:
        while self.waiting and self.flying < INST_DEPTH:
            self.source.send(self.waiting.pop(0))
            self.flying += 1

    async def execute(self, payloads: list[int]) -> Flit:
        """Send instructions and wait for all of them; returns the last completion."""
        done = len(self.signals) + len(payloads)
        self.waiting += [Flit(AT, HOST, FlitType.CU_INST, TXN, 0, 0, payload) for payload in payloads]
        self._go_on()
        await self.links.until(lambda: len(self.signals) >= done, BUDGET, f"completion {done}")
        return self.signals[-1]

    async def send_burst(self, buf: int, offset: int, words: list[int]) -> None:
        head = CU_DATA.encode(buf=buf, offset=offset, len=len(words) - 1, flags=SIGNAL_ON_COMPLETE)
        self.source.send(Flit(AT, HOST, FlitType.CU_DATA, 0, 0, 0, head))
        for place, word in enumerate(words):
            self.source.send(Flit(AT, HOST, FlitType.CU_DATA, 0, int(place + 1 == len(words)), 0, word))
        received = self.received + 1
        await self.links.until(lambda: self.received >= received, BUDGET, "DATA_RECEIVED")

    async def load(self, words: list[int], descriptors) -> None:
        payloads = [isa.IMEM.encode(addr=i, word=int(word)) for i, word in enumerate(words)]
        payloads += [isa.DESC.encode(ad=int(ad), field=int(part), value=int(value)) for ad, part, value in descriptors]
        await self.execute(payloads)

    async def show_l1(self) -> list[int]:
        """All of L1, by a kernel of two VDRAINs."""
        kernel = [isa.encode(Opcode.VDRAIN, ad=half, l1=half * HALF) for half in range(2)] + [isa.encode(Opcode.VHALT)]
        descriptors = [(half, 0, SHOWN + half * HALF * 32) for half in range(2)]
        descriptors += [(half, 1, 32 << 16 | HALF) for half in range(2)] + [
            (half, d, 1) for half in range(2) for d in (2, 3, 4)
        ]
        await self.load(kernel, descriptors)
        await self.execute([isa.RUN.encode(pc=0)])
        return [self.memory[SHOWN + 32 * word] for word in range(2 * HALF)]


@cocotb.test()
async def recorded_kernels(dut):
    if hasattr(dut, "planted"):
        dut.planted.value = 0
    links = await Links.start(dut, probing=0.0)
    wrong, ends, of_l1, of_memory = [], 0, 0, 0
    for program in programs(GOLDEN, CoreProgram):
        assert program.errata <= {"exp2-wrap"}, f"{program.name}: the gates have no {program.errata}"
        await links.reset()  # registers as the recording found them
        bench = Bench(links)
        for half in range(2):
            rows = program.l1_before[half * HALF : (half + 1) * HALF]
            await bench.send_burst(0, half * HALF, [integer(row) for row in rows])
        bench.memory.update(program.memory_before)
        await bench.load(program.imem, program.desc)
        for buf, offset, count in program.cud:
            await bench.send_burst(int(buf), int(offset), [BURST_DATA + i for i in range(count)])
        signal = CU_SIGNAL.decode((await bench.execute([isa.RUN.encode(pc=0)])).payload)
        await links.step(2 * LATENCY)
        memory = dict(bench.memory)
        l1 = await bench.show_l1()
        assert not links.broken(), f"{program.name}: {links.broken()}"

        model, _ = replay(program)
        expected = (model.completions()[-1].code, model.completions()[-1].arg)
        recorded = (program.code, program.arg or expected[1])  # a kernel that ends has no recorded argument
        ends += 1
        if not (signal["code"], signal["arg"]) == expected == recorded:
            wrong.append(f"{program.name}: ended with {signal}, recorded {recorded}, model {expected}")
        for word in program.mask.nonzero()[0]:
            of_l1 += 1
            recorded = integer(program.l1_after[word])
            if l1[word] != recorded:
                wrong.append(f"{program.name}: L1 word {word}: got {l1[word]:064x}, recorded {recorded:064x}")
        for address, recorded in program.memory_after.items():
            of_memory += 1
            if memory.get(address, 0) != recorded:
                wrong.append(
                    f"{program.name}: memory {address:#x}: got {memory.get(address, 0):064x}, recorded {recorded:064x}"
                )
        for line in wrong[:20]:
            dut._log.error(line)
        assert not wrong, f"{len(wrong)} differences up to {program.name}"
    assert ends and of_l1 and of_memory
    dut._log.warning(
        f"{ends} recorded kernels, {of_l1} words of L1 and {of_memory} of memory equal, cycles the model's"
    )
    report(programs=ends, l1_words=of_l1, memory_words=of_memory)
