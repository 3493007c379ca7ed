"""Random life of a vector core, the same for the model and for the gates: kernels, bursts, memory, nonsense."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from itertools import product

from kohakutpu.fuzz.kernels import BUS, CHAIN, SPECIALS, Kernel
from kohakutpu.isa import vector as isa
from kohakutpu.isa.flit import Flit, FlitType, node, xy
from kohakutpu.isa.memory import ADDRESS_WIDTH, WORD_BYTES, decode_request
from kohakutpu.isa.signals import CU_CTRL_REQUEST, CU_DATA, CU_SIGNAL, SignalCode
from kohakutpu.isa.vector import Mode, Opcode

AT, PORT, HOST = node(1, 0), node(0, 1), node(1, 1)
SENDERS = [node(2, 2), node(3, 1), HOST]
MEETING = node(15, 15)  # a drain to here is answered with flits to L1 word `HOT`, which the core is using
HOT = 5
INST_DEPTH, RECV_DEPTH = 12, 16


class Meeting(Kernel):
    """Kernels in which stores, loads and arriving flits meet."""

    def extra(self) -> None:
        """Stores, loads and arriving flits at one L1 word."""
        x, y = xy(MEETING)
        self.set_length(16)
        self.descriptors += [(0, 0, HOT)] + [(0, d, 1) for d in range(1, 5)]
        self.add(Opcode.VDRAIN, peer=1, ad=7, l1=HOT, x=x, y=y, buf=0, signal=0)
        for place in range(24):
            register = place % self.registers
            self.add(Opcode.VST, ad=0, vd=register, dtype=1)
            self.add(Opcode.VLD, ad=0, vd=register, dtype=1)


def first_kernel(l1_words: int) -> Kernel:
    """Fills L1 and every register: what a life begins with, as memories outlive a reset."""
    kernel = Meeting(random.Random(0), 0, l1_words, unsafe=False)
    kernel.words = []
    span = min(l1_words, 256)
    kernel.descriptors = [
        (4, 0, 0x40 * WORD_BYTES),
        (4, 1, 32 << 16 | span),
        (5, 0, 0x800 * WORD_BYTES),
        (5, 1, 32 << 16 | span),
    ]
    kernel.descriptors += [(0, 0, 0), (0, 1, 1 << 16 | 256)] + [(ad, d, 1) for ad in (0, 4, 5) for d in (2, 3, 4)]
    kernel.set_length(128)
    kernel.add(Opcode.VFILL, ad=4, l1=0)
    kernel.add(Opcode.VFILL, ad=5, l1=l1_words - span)
    kernel.add(Opcode.VBAR)
    for register in range(16):
        kernel.add(Opcode.VLD, ad=0, vd=register, dtype=1 + register % 2, offset=7 * register)
        kernel.immediate(register, SPECIALS[register % len(SPECIALS)])
    kernel.add(Opcode.VHALT)
    return kernel


def last_kernel(l1_words: int) -> Kernel:
    """Drains L1, every register, scalar and predicate to memory: equal flits mean equal state."""
    kernel = Meeting(random.Random(0), 0, l1_words, unsafe=False)
    kernel.words, part = [], min(l1_words, 256)
    kernel.descriptors = [(0, 0, 0), (0, 1, 1 << 16 | 256), (6, 0, BUS * 2), (6, 1, 32 << 16 | part)]
    kernel.descriptors += [(1, 0, BUS * 2), (1, 1, 32 << 16 | 64)] + [(ad, d, 1) for ad in (0, 1, 6) for d in (2, 3, 4)]
    for start in range(0, l1_words, part):
        kernel.add(Opcode.VDRAIN, ad=6, l1=start)
    kernel.set_length(128)
    kernel.set_mode(Mode.FLAT)
    for base in range(0, 16, 4):
        for register in range(base, base + 4):
            kernel.add(Opcode.VST, ad=0, vd=register, dtype=2, offset=16 * (register - base))
        kernel.add(Opcode.VDRAIN, ad=1, l1=0)
    for p in range(4):
        kernel.add(Opcode.VMOV, sa=3, va=0, vd=0)
        kernel.add(Opcode.VMOV, sa=3, va=1, vd=0, pm=1, pr=p)
        kernel.add(Opcode.VST, ad=0, vd=0, dtype=1, offset=8 * p)
    kernel.add(Opcode.VDRAIN, ad=1, l1=0)
    kernel.set_length(16)
    for register in range(1, 16):
        kernel.add(Opcode.VBCAST, sa=1, vd=0, va=register)
        kernel.add(Opcode.VST, ad=0, vd=0, dtype=2, offset=2 * register)
    kernel.add(Opcode.VDRAIN, ad=1, l1=0)
    kernel.add(Opcode.VHALT)
    return kernel


class Slots(Kernel):
    """Cases of `slot_cases`: each computes from one choice of sources, and its result goes to memory as it is."""

    def __init__(self, cases: list[tuple[Mode, Opcode, tuple[int, ...]]], place: int):
        super().__init__(random.Random(0), 0, 512, unsafe=False)
        self.words = []
        self.descriptors = [
            (0, 0, 0), (0, 1, 1 << 16 | 256), (6, 0, BUS * 3 + place * 0x4000), (6, 1, 32 << 16 | 2 * len(cases)),
        ]  # fmt: skip
        self.descriptors += [(ad, d, 1) for ad in (0, 6) for d in (2, 3, 4)]
        for register, word in enumerate((0x3FC000, 0xC04000, 0x3F8000, 0x40A5A5, 0xBE1234), start=1):
            self.immediate(register, word)
        self.set_length(16)
        self.set_mode(Mode.FLAT)
        for number, (mode, op, sources) in enumerate(cases):
            self._case(mode, op, sources)
            self.add(Opcode.VST, ad=0, vd=15, dtype=2, offset=2 * number)
        self.add(Opcode.VDRAIN, ad=6, l1=0)
        self.add(Opcode.VHALT)

    def _case(self, mode: Mode, op: Opcode, sources: tuple[int, ...]) -> None:
        if mode != self.mode:
            self.set_mode(mode)
        for stage in range(CHAIN[mode] - 1):  # something for the last stage to go on with
            self.add(Opcode.VADD, sa=2 if stage else 0, va=3, sb=1, sc=1, vc=2)
        fields = dict.fromkeys(("sa", "sb", "sc"), 1 if CHAIN[mode] > 1 else 0)
        for letter, source, register in zip(isa.OPERANDS[op], sources, (3, 4, 5), strict=False):
            fields |= {"s" + letter: source, "v" + letter: register % 3 if source == 3 else register}
        self.add(op, **fields, vd=15, pr=1)
        if op in isa.COMPARES:
            self.set_mode(Mode.FLAT)
            self.add(Opcode.VMOV, sa=3, va=0, vd=15)
            self.add(Opcode.VMOV, sa=3, va=1, vd=15, pm=1, pr=1)


def slot_cases() -> list[tuple[Mode, Opcode, tuple[int, ...]]]:
    """Every ALU operation with every source in every operand: first in a program, and last in a chain of 2 and of 4."""
    return [
        (mode, op, sources)
        for mode, choices in ((Mode.FLAT, (0, 1, 3)), (Mode.D2, (1, 2, 3)), (Mode.D4, (1, 2, 3)))
        for op, letters in isa.OPERANDS.items() for sources in product(choices, repeat=len(letters))
    ]  # fmt: skip


def slot_kernels() -> list[Slots]:
    """Kernels that hold the cases, as many in each as its image takes."""
    cases = slot_cases()
    return [Slots(cases[first : first + 60], place) for place, first in enumerate(range(0, len(cases), 60))]


def instructions(chance: random.Random, kernel: Kernel) -> list[Flit]:
    """The CU_INST flits that load and run a kernel."""
    pc = chance.choice([0, 0, chance.randrange(512)])
    payloads = [isa.IMEM.encode(addr=(pc + i) % isa.IMEM_WORDS, word=word) for i, word in enumerate(kernel.words)]
    payloads += [isa.DESC.pack(ad=ad, field=part, value=value) for ad, part, value in kernel.descriptors]
    if chance.random() < 0.2:
        payloads.insert(chance.randrange(len(payloads)), chance.choice([0, 4, 15]) << 252)
        payloads.append(
            isa.DESC.pack(ad=chance.randrange(8), field=chance.randrange(5, 8), value=chance.getrandbits(40))
        )
    payloads += [isa.RUN.encode(pc=pc)]
    return [
        Flit(AT, HOST, FlitType.CU_INST, chance.getrandbits(8), int(chance.random() < 0.1), 0, payload)
        for payload in payloads
    ]


def burst(
    chance: random.Random, source: int, l1_words: int, *, bad: bool = False, offset: int | None = None
) -> list[Flit]:
    """A CU_DATA burst, to one word if it names an `offset`; a bad one is refused, short or long."""
    length = chance.choice([1, 1, 2, 5, 9, min(256, l1_words) if chance.random() < 0.1 else 3]) if offset is None else 1
    offset = chance.randrange(l1_words - length + 1) if offset is None else offset
    buf = 0
    sent = length
    if bad:
        fault = chance.randrange(4)
        if fault == 0:
            buf = chance.choice([1, 2, 255])
        elif fault == 1:
            offset = chance.choice([l1_words - length + 1, 0xFFFF, l1_words])
        elif fault == 2:
            sent = max(1, length - chance.randint(1, 4))
        else:
            sent = length + chance.randint(1, 3)
    ack = chance.choice([0, HOST, node(3, 3)])
    head = CU_DATA.pack(
        buf=buf, offset=offset, len=length - 1, flags=chance.choice([0, 1, 1, 3]), ack_y=ack >> 4, ack_x=ack & 15
    )
    txn = chance.getrandbits(8)
    flits = [Flit(AT, source, FlitType.CU_DATA, txn, chance.randrange(2) if bad else 0, 0, head)]
    return flits + [
        Flit(AT, source, FlitType.CU_DATA, txn, int(i + 1 == sent), 0, half_words(chance)) for i in range(sent)
    ]


def half_words(chance: random.Random) -> int:
    """256 bits that are FP16 values, mostly finite and of moderate size."""
    word = chance.getrandbits(256)
    if chance.random() < 0.9:
        word &= ~int.from_bytes(b"\x00\x40" * 16, "little")
    return word


class World:
    """Everything around the core: sends a seed's kernels as credit allows, answers reads after varying latency, and
    throws bursts, control requests and nonsense in. Attach `on_flit` to what the core sends; `source` is what feeds it.
    """

    def __init__(self, source, seed: int, *, kernels: int, l1_words: int, words: int = 60, hostile: bool = True,
                 given: Sequence[Kernel] = ()):  # fmt: skip
        self.source = source
        self.chance = chance = random.Random(seed)
        self.seed = seed
        self.l1_words = l1_words
        self.noise = chance.choice([0.0, 0.02, 0.06]) if hostile else 0.0
        self.bad = chance.choice([0.0, 0.0, 0.1, 0.4])  # share of bursts that raise F_CUDATA
        self.latency = chance.choice([(1, 1), (20, 20), (1, 40)])
        self.memory: dict[int, int] = {}
        self.free = 0
        self.targets: deque[int] = deque()
        self.done = False
        middle = [Meeting(chance, words, l1_words, unsafe=hostile and chance.random() < 0.5) for _ in range(kernels)]
        begin, *rest = [
            instructions(chance, kernel) for kernel in [first_kernel(l1_words), *given, *middle, last_kernel(l1_words)]
        ]
        self.flits: deque[Flit] = deque(begin + [flit for flits in rest for flit in flits])
        self.owed = len(self.flits)
        # the first kernel and the last, which sets the state and shows it, are left alone
        self.noisy = range(len(rest[-1]) + 2 * INST_DEPTH, self.owed - len(begin))

    def start(self) -> None:
        for _ in range(min(INST_DEPTH, len(self.flits))):
            self.source.send(self.flits.popleft())

    def on_flit(self, cycle: int, flit: Flit) -> None:
        if flit.type == FlitType.CU_SIGNAL:
            if CU_SIGNAL.get(flit.payload, "code") != SignalCode.DATA_RECEIVED:
                self.owed -= 1
                if self.flits:
                    self.source.send(self.flits.popleft())
                self.done = not self.owed
        elif flit.dst == PORT and flit.type == FlitType.MEM_RD_REQ:
            if self.owed in self.noisy and self.chance.random() < self.noise:
                self.source.send(Flit(AT, PORT, FlitType.MEM_RD_RESP, flit.txn ^ 1, 1, 0, 0))  # nobody's
            self._read(cycle, flit)
        elif flit.dst == PORT and flit.type == FlitType.MEM_WR_REQ:
            request = decode_request(flit.payload)
            self.targets.extend(
                (request.addr + WORD_BYTES * beat) % (1 << ADDRESS_WIDTH) for beat in range(request.len + 1)
            )
        elif flit.dst == PORT and flit.type == FlitType.MEM_WR_DATA and self.targets:
            self.memory[self.targets.popleft()] = flit.payload
        if flit.type == FlitType.CU_DATA and flit.dst == MEETING:
            for _ in range(4):
                self.source.send(*burst(self.chance, HOST, self.l1_words, offset=HOT))
        if self.owed in self.noisy and self.chance.random() < self.noise:
            self._disturb()

    def _read(self, cycle: int, flit: Flit) -> None:
        request = decode_request(flit.payload)
        self.free = max(self.free, cycle + self.chance.randint(*self.latency))
        for beat in range(request.len + 1):
            address = (request.addr + WORD_BYTES * beat) % (1 << ADDRESS_WIDTH)
            if address not in self.memory:
                self.memory[address] = half_words(random.Random(address * 1021 + self.seed))
            last = int(beat == request.len)
            self.source.send(
                Flit(AT, PORT, FlitType.MEM_RD_RESP, flit.txn, last, 0, self.memory[address]), at=self.free
            )
            self.free += 1 if self.chance.random() < 0.9 else self.chance.randint(1, 9)

    def _disturb(self) -> None:
        chance, kind = self.chance, self.chance.randrange(10)
        if kind < 6:
            bad = chance.random() < self.bad
            bursts = [deque(burst(chance, node, self.l1_words, bad=bad)) for node in chance.sample(SENDERS, 1 + bad)]
            while left := [flits for flits in bursts if flits]:  # two at once are mixed, and one of them is refused
                self.source.send(chance.choice(left).popleft())
        elif kind < 8:
            index = chance.choice([0, 1, 2, 3, 3, 9])
            self.source.send(
                Flit(AT, HOST, FlitType.CU_CTRL, chance.getrandbits(8), 1, 0, CU_CTRL_REQUEST.pack(index=index))
            )
        else:
            stray = chance.choice([FlitType.MEM_WR_ACK, FlitType.MEM_RD_RESP, 9, 12])
            self.source.send(Flit(AT, PORT, stray, chance.getrandbits(8), 1, 0, half_words(chance)))
