"""The memory mover as a device under test: its registers, its status, and its memory or its AXI4 master."""

from __future__ import annotations

from amaranth import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rtl.memory_port import MEMORY_AXI
from rtl.mover import AUX_INDEX_BITS, FAULT_BITS, MOVES_BITS, MemoryMover
from sim.axi_checker import COUNTER_BITS, RULES, AxiChecker
from sim.dram import BackdoorSignature, Dram

WORD_SHIFT = 5
# What a cycle shows, the first lowest: status, and the handshakes on the bus.
SEEN = {
    "busy": 1, "fault": FAULT_BITS, "moves": MOVES_BITS, "ar": 1, "araddr": 35, "aw": 1, "awaddr": 35,
    "w": 1, "r": 1, "b": 1,
}  # fmt: skip


class MoverRig(wiring.Component):
    """`write`, `index` and `data` are the mover's; `seen` is SEEN packed, `wdata` what a write says.

    With `dram` (keywords of `Dram`) there is a memory behind, with `backdoor`. Without it `axi` is the master and
    `axi_violations` the counters of its checker.
    """

    def __init__(self, *, memory_bytes: int, dram: dict | None = None, fault: str | None = None):
        self.mover = MemoryMover(memory_bytes=memory_bytes, fault=fault)
        self.dram = Dram(ports=1, memory_bytes=memory_bytes, **dram) if dram else None
        members = {
            "write": In(1), "index": In(AUX_INDEX_BITS), "data": In(64),
            "seen": Out(sum(SEEN.values())), "wdata": Out(256),
        }  # fmt: skip
        if dram:
            members["backdoor"] = In(BackdoorSignature())
        else:
            members |= {"axi": Out(MEMORY_AXI), "axi_violations": Out(COUNTER_BITS * len(RULES))}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        m.submodules.mover = mover = self.mover
        axi = mover.axi
        m.d.comb += [
            mover.control.write.eq(self.write), mover.control.index.eq(self.index), mover.control.data.eq(self.data),
            self.seen.eq(
                Cat(
                    mover.control.busy, mover.control.fault, mover.control.moves,
                    axi.arvalid & axi.arready, axi.araddr[WORD_SHIFT:],
                    axi.awvalid & axi.awready, axi.awaddr[WORD_SHIFT:],
                    axi.wvalid & axi.wready, axi.rvalid, axi.bvalid,
                )
            ),
            self.wdata.eq(axi.wdata),
        ]  # fmt: skip
        if self.dram:
            m.submodules.dram = dram = self.dram
            wiring.connect(m, wiring.flipped(self.backdoor), dram.backdoor)
            wiring.connect(m, axi, dram.axi[0])
            return m
        wiring.connect(m, axi, wiring.flipped(self.axi))
        m.submodules.check = check = AxiChecker(addr_width=40, data_width=256, id_width=4, longest=1)
        m.d.comb += [getattr(check, name).eq(getattr(axi, name)) for name in MEMORY_AXI.members]
        m.d.comb += self.axi_violations.eq(check.violations)
        return m
