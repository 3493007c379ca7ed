"""Random life of a vector core, the same for the model and for the gates: kernels, bursts, memory, nonsense."""

from __future__ import annotations

import random
from collections import deque

from kohakutpu.isa import vector as isa
from kohakutpu.isa.flit import Flit, FlitType, node, xy
from kohakutpu.isa.memory import ADDRESS_WIDTH, WORD_BYTES, decode_request
from kohakutpu.isa.signals import CU_CTRL_REQUEST, CU_DATA, CU_SIGNAL, SignalCode
from kohakutpu.isa.vector import ALU_OPS, Mode, Opcode, RedKind

AT, PORT, HOST = node(1, 0), node(0, 1), node(1, 1)
SENDERS = [node(2, 2), node(3, 1), HOST]
MEETING = node(15, 15)  # a drain to here is answered with flits to L1 word `HOT`, which the core is using
HOT = 5
INST_DEPTH, RECV_DEPTH = 12, 16
BUS = 0x100_0000  # where memory drains go; fills read from below
CHAIN = {Mode.FLAT: 1, Mode.D2: 2, Mode.D4: 4}
SPECIALS = [0, 0x800000, 0x3F8000, 0xBF8000, 0x7F8000, 0xFF8000, 0x7FC000, 0x7FFFFF, 1, 0x008000, 0x7F7FFF]


class Kernel:
    """Words and descriptors of one kernel; `unsafe` also writes what faults."""

    def __init__(self, chance: random.Random, words: int, l1_words: int, *, unsafe: bool):
        self.chance = chance
        self.l1_words = l1_words
        self.unsafe = unsafe
        self.words: list[int] = []
        self.descriptors: list[tuple[int, int, int]] = []
        self.registers = chance.choice([3, 5, 16])
        self.mode, self.length = Mode.FLAT, 128
        self._describe()
        self.set_length(chance.choice([128, 16, chance.randint(1, 128)]))
        self.set_mode(chance.choice([Mode.FLAT, Mode.FLAT, Mode.D2, Mode.D4]))
        if chance.random() < 0.3:
            self.immediate(3, chance.choice(SPECIALS), k=True)
        while len(self.words) < words:
            self.item()
        if not unsafe or chance.random() < 0.5:
            self.add(Opcode.VHALT)
        else:
            self.mistake()

    def _describe(self) -> None:
        """A0 to A3 walk L1, A4 and A5 read memory, A6 writes it, A7 is a peer record."""
        chance = self.chance
        for ad in range(8):
            limit = chance.choice([1, 3, 12, 40])
            if ad < 4:
                base, strides = chance.randrange(self.l1_words), (1, 1, 1, -1, 2, 0, 7, 40)
            elif ad < 7:
                base = chance.randrange(1 << 11) * WORD_BYTES + chance.choice([0, 0, 0, 0x9F << 32, -256, 8])
                base += BUS if ad == 6 else 0
                strides = (32, 32, 32, 32, 64, -32, 4096, 0)
                limit = chance.choice([1, 8, 20, 40, 130])
            else:
                far = chance.random() < 0.3
                base = isa.PEER_RECORD.pack(
                    fin=chance.randrange(1, 256) if far else 0, mesh=chance.randrange(4), ack_y=1, ack_x=1,
                    offset=chance.randrange(1 << 16),
                )  # fmt: skip
                strides = (0, 1)
            self.descriptors.append((ad, 0, base % (1 << ADDRESS_WIDTH)))
            for d in range(4):
                bound = chance.randint(0, limit) if chance.random() < 0.8 else 1
                limit //= bound or 1
                self.descriptors.append((ad, d + 1, (chance.choice(strides) & 0x3FFFF) << 16 | bound))
        chance.shuffle(self.descriptors)

    def add(self, op: Opcode, **fields: int) -> None:
        self.words.append(isa.encode(op, **fields))

    def any_register(self) -> int:
        return self.chance.randrange(self.registers)

    def immediate(self, register: int, value: int, *, k: bool = False) -> None:
        self.add(Opcode.VSETI, vd=register, sa=3 if k else self.chance.choice([0, 1, 2]))
        self.words.append(value | self.chance.getrandbits(8) << 24)

    def set_length(self, length: int) -> None:
        self.length = length
        self.immediate(0, length)
        self.add(Opcode.VSETVL, va=0)

    def set_mode(self, mode: Mode) -> None:
        self.mode = mode
        self.add(Opcode.VSETMODE, mode=mode)

    def alu_word(self, stage: int) -> None:
        chance = self.chance
        pick = (0, 0, 0, 0, 1, 3) if stage == 0 else (1, 2, 2, 2, 3)
        fields = {name: chance.choice(pick) for name in ("sa", "sb", "sc")}
        fields |= {name: self.any_register() for name in ("va", "vb", "vc", "vd")}
        op = chance.choice(sorted(ALU_OPS) + [Opcode.VFMA, Opcode.VADD, Opcode.VCMPLT] * 2)
        self.add(op, **fields, pm=chance.choice((0, 0, 0, 1, 2, 3)), pr=chance.randrange(4))

    def lanes(self) -> None:
        if self.mode == Mode.TREE:
            self.set_mode(self.chance.choice(list(CHAIN)))
        for stage in range(CHAIN[self.mode]):
            self.alu_word(stage)

    def reduction(self) -> None:
        chance = self.chance
        kind = chance.choice(list(RedKind))
        if kind < RedKind.ANY:
            if self.length % 16:
                self.set_length(16 * chance.randint(1, 8))
            if self.mode != Mode.TREE:
                self.set_mode(Mode.TREE)
            if chance.random() < 0.2:  # nothing but -0, which no product or sum of other things leaves in all places
                self.set_length(128)
                self.immediate(1, 0x800000)
                self.add(Opcode.VBCAST, sa=1, vd=1, va=1)
                self.add(Opcode.VRED, vd=chance.randrange(1, 16), va=1, kind=RedKind.SUM)
        for _ in range(chance.choice([1, 1, 1, 2])):
            self.add(Opcode.VRED, vd=chance.randrange(1, 16), va=self.any_register(), vb=self.any_register(), kind=kind,
                     pr=chance.randrange(4))  # fmt: skip

    def short(self) -> None:
        chance, vd, va = self.chance, self.any_register(), self.any_register()
        which = chance.randrange(5)
        if which == 0:
            self.add(Opcode.VCVT, dtype=chance.choice([1, 1, 2]), vd=vd, va=va)
        elif which == 1:
            self.add(Opcode.VSHUF, vd=vd, va=va, vb=chance.randrange(16))
        else:
            self.add(Opcode.VBCAST, sa=chance.choice([0, 1, 1, 3]), vd=max(vd, 1), va=va)

    def memory(self) -> None:
        chance = self.chance
        op = chance.choice([Opcode.VLD, Opcode.VLD, Opcode.VST])
        for _ in range(chance.choice([1, 1, 3])):
            self.add(op, ad=chance.randrange(4), vd=self.any_register(), dtype=chance.choice([1, 1, 2]),
                     offset=chance.randrange(-600, 600))  # fmt: skip

    def transfer(self) -> None:
        chance = self.chance
        which = chance.random()
        if which < 0.5:
            if chance.random() < 0.3:  # words apart: as many requests
                self.descriptors += [(4, 1, 64 << 16 | 120)] + [(4, d, 1) for d in (2, 3, 4)]
            self.add(Opcode.VFILL, ad=chance.choice([4, 5]), l1=chance.randrange(512))
        elif which < 0.8:
            self.add(Opcode.VDRAIN, ad=6, l1=chance.randrange(512))
        else:
            x, y = chance.randrange(16), chance.randrange(16)
            self.add(Opcode.VDRAIN, peer=1, ad=7, l1=chance.randrange(512), x=x, y=y,
                     buf=chance.randrange(16), signal=chance.randrange(2))  # fmt: skip
        if chance.random() < 0.4:
            self.add(Opcode.VBAR)

    def meeting(self) -> None:
        """Stores, loads and arriving flits at one L1 word."""
        x, y = xy(MEETING)
        self.set_length(16)
        self.descriptors += [(0, 0, HOT)] + [(0, d, 1) for d in range(1, 5)]
        self.add(Opcode.VDRAIN, peer=1, ad=7, l1=HOT, x=x, y=y, buf=0, signal=0)
        for place in range(24):
            register = place % self.registers
            self.add(Opcode.VST, ad=0, vd=register, dtype=1)
            self.add(Opcode.VLD, ad=0, vd=register, dtype=1)

    def loop(self) -> None:
        """Up to 15 words, now and then with a chain or an immediate across its end."""
        chance = self.chance
        self.immediate(0, chance.choice([0, 1, 2, 3, 7]))
        at = len(self.words)
        self.words.append(0)
        for _ in range(chance.randint(0, 4)):
            chance.choice([self.lanes, self.short, self.memory])()
        body = min(15, len(self.words) - at - 1)
        if chance.random() < 0.15 and body > 1:
            body -= 1
        self.words[at] = isa.encode(Opcode.VLOOP, va=0, vb=body)
        # what a loop that ends inside an instruction would leave open
        self.words.append(isa.encode(Opcode.VSETMODE, mode=self.mode))

    def item(self) -> None:
        chance = self.chance
        kind = chance.randrange(20)
        if kind < 8:
            self.lanes()
        elif kind < 10:
            self.short()
        elif kind < 12:
            self.memory()
        elif kind < 14:
            self.reduction()
        elif kind == 14:
            self.transfer()
        elif kind == 15:
            self.loop()
        elif kind == 16:
            self.set_length(chance.choice([128, chance.randint(1, 128), chance.randint(1, 20)]))
        elif kind == 17:
            self.set_mode(chance.choice(list(Mode)))
        elif kind == 18:
            self.immediate(chance.randrange(16), chance.choice([chance.getrandbits(24), *SPECIALS]))
        elif chance.random() < 0.5:
            self.add(Opcode.VBAR)
        else:
            self.meeting()

    def mistake(self) -> None:
        """A word that faults, and some behind it that must not run."""
        chance = self.chance
        which = chance.randrange(9)
        if which == 0:
            self.add(chance.choice([Opcode.VLD, Opcode.VST, Opcode.VCVT]), vd=1)
            self.words[-1] = self.words[-1] & ~(7 << 24) | chance.choice([0, 3, 7]) << 24
        elif which == 1:
            self.set_mode(Mode.D2)
            self.alu_word(0)
            self.add(Opcode.VADD, sa=2, sb=1, sc=0, va=1, vc=2, vd=3)
        elif which == 2:
            self.set_mode(Mode.FLAT)
            self.add(Opcode.VMOV, sa=0, sb=chance.choice([0, 2]), sc=2, vd=2)
        elif which == 3:
            self.set_mode(Mode.TREE)
            self.alu_word(0)
        elif which == 4:
            self.add(chance.choice([Opcode.VFILL, Opcode.VDRAIN]), ad=3)
            self.descriptors += [(3, 1, chance.choice([257, 65535, 16])), (3, 2, 17), (3, 3, 1), (3, 4, 1)]
        elif which == 5:
            self.immediate(5, 4)
            self.add(Opcode.VLOOP, va=5, vb=3)
            self.add(Opcode.VLOOP, va=5, vb=1)
        elif which == 6:
            self.immediate(5, chance.choice([0, 129, 0x800001]))
            self.add(Opcode.VSETVL, va=5)
        elif which == 7:
            self.set_length(chance.choice([1, 17, 100]))
            self.add(Opcode.VRED, kind=chance.randrange(6), vd=3, va=1)
        else:
            self.set_length(32)
            self.set_mode(Mode.FLAT)
            self.add(Opcode.VRED, kind=chance.randrange(6), vd=3, va=1)
        for _ in range(6):
            self.short()
        self.add(Opcode.VHALT)


def first_kernel(l1_words: int) -> Kernel:
    """Fills L1 and every register: what a life begins with, as memories outlive a reset."""
    kernel = Kernel(random.Random(0), 0, l1_words, unsafe=False)
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
    kernel = Kernel(random.Random(0), 0, l1_words, unsafe=False)
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

    def __init__(self, source, seed: int, *, kernels: int, l1_words: int, words: int = 60, hostile: bool = True):
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
        middle = [Kernel(chance, words, l1_words, unsafe=hostile and chance.random() < 0.5) for _ in range(kernels)]
        begin, *rest = [
            instructions(chance, kernel) for kernel in [first_kernel(l1_words), *middle, last_kernel(l1_words)]
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
