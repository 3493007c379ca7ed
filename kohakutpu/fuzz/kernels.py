"""Random kernels of a vector core."""

from __future__ import annotations

import random

from kohakutpu.isa import vector as isa
from kohakutpu.isa.memory import ADDRESS_WIDTH, WORD_BYTES
from kohakutpu.isa.vector import ALU_OPS, Mode, Opcode, RedKind

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
            self.extra()

    def extra(self) -> None:
        """An item now and then that a bench adds."""
        self.add(Opcode.VBAR)

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


class MeshKernel(Kernel):
    """A legal kernel of a core in a machine: reads of the operand region, drains to `own` memory or to `targets`.

    `targets` are (x, y, buffer, first granule, granules, ack) that a peer drain may use. A `tidy` kernel waits for its
    fills. `purpose` names what is not legal in it.
    """

    def __init__(self, chance: random.Random, words: int, l1_words: int, *, own: int, region: int, targets: list[tuple],
                 tidy: bool, unsafe: bool = False):  # fmt: skip
        self.own, self.region, self.targets, self.tidy = own, region, targets, tidy
        self.purpose = ""
        super().__init__(chance, words, l1_words, unsafe=unsafe)

    def _describe(self) -> None:
        super()._describe()
        chance, kept = self.chance, [item for item in self.descriptors if item[0] < 4]
        for ad, first, size, strides in (
            (4, 0, self.region, (32, 32, 32, 64, -32, 4096, 0, 96)), (5, 0, self.region, (32, 32, 2048, -64, 0, 40)),
            (6, self.own, 0x4000, (32, 32, 32, 64, -32, 0, 96, 40)),
        ):  # fmt: skip
            base = first + size // 4 + chance.randrange(size // 64) // 2 * WORD_BYTES + chance.choice([0, 0, 0, 0, 8])
            kept.append((ad, 0, base))
            limit = chance.choice([1, 8, 20, 40, 130, 256])
            for d in range(4):
                bound = chance.choice([chance.randint(0, limit), limit, 1])
                limit //= bound or 1
                kept.append((ad, d + 1, (chance.choice(strides) & 0x3FFFF) << 16 | bound))
        for ad in range(7):  # now and then every dimension walks
            if chance.random() < 0.15:
                for d in range(1, 5):
                    at = next(at for at, item in enumerate(kept) if item[:2] == (ad, d))
                    kept[at] = (ad, d, kept[at][2] & ~0xFFFF | chance.choice([2, 2, 3, 4]))
        chance.shuffle(kept)
        self.descriptors = kept

    def immediate(self, register: int, value: int, *, k: bool = False) -> None:
        self.add(Opcode.VSETI, vd=register, sa=3 if k else self.chance.choice([0, 1, 2]))
        self.words.append(value)

    def transfer(self) -> None:
        chance, which = self.chance, self.chance.random()
        if which < 0.5:
            for _ in range(chance.choice([1, 1, 2])):
                self.add(Opcode.VFILL, ad=chance.choice([4, 5]), l1=chance.randrange(512))
            if self.tidy or chance.random() < 0.4:
                self.add(Opcode.VBAR)
        elif which < 0.75 or not self.targets:
            self.add(Opcode.VDRAIN, ad=6, l1=chance.randrange(512))
        else:
            self.peer()

    def peer(self) -> None:
        """A drain to a node; one a kernel, as there is one record."""
        if any(ad == 7 for ad, _, _ in self.descriptors):
            return
        chance = self.chance
        x, y, buf, first, room, ack = chance.choice(self.targets)
        ack = ack and chance.choice([ack, ack, ack, 0xFF, 0x99])
        count = min(room, chance.choice([1, 2, 4, 7, 16, 40, 256]))
        far = ack and chance.random() < 0.2
        offset = first + chance.choice([0, room - count, chance.randrange(room - count + 1), min(1, room - count)])
        record = isa.PEER_RECORD.encode(
            fin=chance.choice([1, 255, 0x21]) if far else 0, mesh=chance.randrange(4) if far else 0, ack_y=ack >> 4,
            ack_x=ack & 15, offset=offset // 2 * 2 if buf == 2 else offset,
        )  # fmt: skip
        outer = chance.choice([d for d in (1, 2, 4) if not count % d])
        self.descriptors += [
            (7, 0, record),
            (7, 1, count // outer),
            (7, 2, outer),
            (7, 3, 1),
            (7, 4, chance.randrange(2)),
        ]
        self.add(Opcode.VDRAIN, peer=1, ad=7, l1=chance.randrange(512), x=x, y=y, buf=buf, signal=chance.randrange(2))

    def mistake(self) -> None:
        super().mistake()
        self.purpose = "fault"
