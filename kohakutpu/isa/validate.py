"""Is a word, an instruction, a kernel or a flit legal? Every function here returns None or raises `EncodingError`.

Legal means: an encoder of this package can produce it. Whatever is accepted re-encodes to itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kohakutpu.wording import counted

from . import cluster, vector
from .fields import EncodingError
from .flit import Flit, FlitType, xy
from .framing import Framing
from .memory import MEM_ACK, MEM_REQ, MEM_WR
from .signals import CU_CTRL_REPLY, CU_CTRL_REQUEST, CU_DATA, CU_SIGNAL, SIGNAL_ON_COMPLETE, ControlOp, UnitType
from .vector import ALU_OPS, IMEM_WORDS, STAGES, Mode, Opcode, RedKind, Source, Word

_INSTRUCTIONS = {UnitType.CLUSTER: cluster.check, UnitType.VECTOR: vector.check}
_VOTES = (RedKind.ANY, RedKind.ALL)
_REMOTE = 4  # rsvd[2]
_REMOTE_TYPES = (FlitType.MEM_WR_REQ, FlitType.MEM_WR_DATA, FlitType.CU_DATA)
_ALWAYS_LAST = (FlitType.MEM_RD_REQ, FlitType.MEM_WR_ACK, FlitType.CU_SIGNAL, FlitType.CU_CTRL)


def instruction(payload: int, unit: UnitType | int) -> None:
    """A CU_INST payload for a unit of CU_TYPE `unit`. The word inside an IMEM is not looked at: see `kernel`."""
    if unit not in _INSTRUCTIONS:
        raise EncodingError(f"no instructions are known for CU_TYPE {unit:#06x}")
    _INSTRUCTIONS[UnitType(unit)](payload)


# ---- flits -------------------------------------------------------------------------------------------


def flit(item: Flit, *, unit: UnitType | int | None = None, descriptor: bool = False) -> None:
    """One flit: header, marker bits, `last` and payload against its type.

    `unit` is the receiver's CU_TYPE where known (CU_INST is then decoded); `descriptor` tells a CU_DATA
    descriptor from data, which the flit itself does not (see `stream`).
    """
    item.to_int()
    if item.type not in list(FlitType):
        raise EncodingError(f"flit type {item.type} is not allocated")
    kind = FlitType(item.type)
    _check_marker(item, kind)
    if kind in _ALWAYS_LAST and not item.last:
        raise EncodingError(f"{kind.name}: last must be 1")
    payload = item.payload
    if kind == FlitType.MEM_RD_REQ:
        MEM_REQ.check(payload)
    elif kind == FlitType.MEM_WR_REQ:
        _check_first(item, kind)
        MEM_WR.check(payload)
    elif kind == FlitType.MEM_WR_ACK:
        MEM_ACK.check(payload)
    elif kind == FlitType.CU_SIGNAL:
        CU_SIGNAL.check(payload)
    elif kind == FlitType.CU_CTRL:
        reply = CU_CTRL_REPLY.get(payload, "op") == ControlOp.REPLY
        (CU_CTRL_REPLY if reply else CU_CTRL_REQUEST).check(payload)
    elif kind == FlitType.CU_INST and unit is not None:
        instruction(payload, unit)
    elif kind == FlitType.CU_DATA and descriptor:
        _check_first(item, kind)
        CU_DATA.check(payload)
        if CU_DATA.get(payload, "flags") & ~SIGNAL_ON_COMPLETE:
            raise EncodingError(
                f"CU_DATA descriptor: flags {CU_DATA.get(payload, 'flags'):#04x}, only bit 0 is defined"
            )


def _check_first(item: Flit, kind: FlitType) -> None:
    if item.last:
        raise EncodingError(f"{kind.name} descriptor: last must be 0, data follows")


def _check_marker(item: Flit, kind: FlitType) -> None:
    if item.rsvd & _REMOTE:
        if kind not in _REMOTE_TYPES:
            raise EncodingError(f"{kind.name}: rsvd {item.rsvd:#05b} marks a remote flit, which this type cannot be")
        if not item.txn:
            raise EncodingError(f"{kind.name}: a remote flit carries its final node in txn, which is 0")
    elif item.rsvd and kind != FlitType.MEM_RD_RESP:
        raise EncodingError(f"{kind.name}: rsvd must be 0, not {item.rsvd:#05b}")


def stream(flits: Iterable[Flit], *, units: Mapping[int, int] | None = None) -> None:
    """Flits in the order they were sent: each one legal, and every burst framed by its descriptor.

    Write data must follow an open write of its source, `last` must be set on exactly the final data flit,
    and no burst may stay open at the end. `units` maps a destination node to its CU_TYPE.
    """
    framing = Framing()
    writes: dict[tuple[int, int], int] = {}
    for number, item in enumerate(flits):
        pair = item.src, item.dst
        try:
            descriptor = framing.is_descriptor(item)
            flit(item, unit=(units or {}).get(item.dst), descriptor=descriptor)
            if item.type == FlitType.CU_DATA and not descriptor:
                _check_last(item, framing.open_bursts().get(pair, 0))
            elif item.type == FlitType.MEM_WR_REQ:
                if writes.get(pair):
                    raise EncodingError(
                        f"MEM_WR_REQ: the write before it still lacks {counted(writes[pair], 'data flit')}"
                    )
                writes[pair] = MEM_WR.get(item.payload, "len") + 1
            elif item.type == FlitType.MEM_WR_DATA:
                if not writes.get(pair):
                    raise EncodingError("MEM_WR_DATA: no write of this source is open")
                writes[pair] -= 1
                _check_last(item, writes[pair])
        except EncodingError as wrong:
            raise EncodingError(f"flit {number}, {xy(item.src)} -> {xy(item.dst)}: {wrong}") from None
    for (src, dst), left in [*framing.open_bursts().items(), *writes.items()]:
        if left:
            raise EncodingError(f"{xy(src)} -> {xy(dst)}: a burst still lacks {counted(left, 'data flit')} at the end")


def _check_last(item: Flit, left: int) -> None:
    if item.last != (left == 0):
        raise EncodingError(
            f"{FlitType(item.type).name}: last is {item.last} with {counted(left, 'data flit')} to come"
        )


# ---- vector kernels ----------------------------------------------------------------------------------


def chain(words: Sequence[Word | int]) -> None:
    """ALU words that run as one operation: one word in FLAT, the stages of a chain in D2 and D4.

    Every selector counts, also of a source that the opcode ignores: C is illegal in stage 0 (F_CHAIN), V in
    later stages (F_VSRC), and every word must be an ALU word (F_OPCODE).
    """
    for stage, word in enumerate(words):
        w = word if isinstance(word, Word) else vector.decode_word(word)
        if w.op not in ALU_OPS:
            raise EncodingError(f"stage {stage}: {Opcode(w.op).name} is no ALU word (F_OPCODE)")
        for name, selector in (("sa", w.sa), ("sb", w.sb), ("sc", w.sc)):
            if stage == 0 and selector == Source.C:
                raise EncodingError(f"stage 0: {w.op.name} selects C in {name}, there is no earlier stage (F_CHAIN)")
            if stage and selector == Source.V:
                raise EncodingError(f"stage {stage}: {w.op.name} selects V in {name}, only C, S and K work (F_VSRC)")


def kernel(image: Mapping[int, int] | Sequence[int], *, pc: int = 0, mode: Mode | int = Mode.FLAT) -> Mode:
    """Follow a kernel from `pc` to its VHALT; returns the mode it leaves, which the next RUN inherits.

    `image` is instruction memory, by address. Refused, with the address named: an illegal word, a broken
    chain or one that straddles a loop's end, ALU words in TREE, a reduction outside it, a loop in a loop,
    an address that was never written, and a kernel that never halts. Values in registers are not followed.
    """
    words = image if isinstance(image, Mapping) else dict(enumerate(image))
    mode = Mode(mode)
    loop: tuple[int, int, Mode | None] | None = None  # top, end, the mode in which the first pass began
    for _ in range(4 * IMEM_WORDS):
        if loop and pc == loop[1]:
            top, end, entered = loop
            # A second pass is followed only where it would differ from the first: in the mode it starts in.
            again = entered is not None and entered != mode
            pc, loop = (top, (top, end, None)) if again else (pc, None)
            if again:
                continue
        try:
            w = _fetch(words, pc)
            if w.op is Opcode.VHALT:
                return mode
            if w.op in ALU_OPS:
                pc = _chain_at(words, pc, mode, loop[1] if loop else None)
                continue
            if w.op is Opcode.VRED and w.kind not in _VOTES and mode != Mode.TREE:
                raise EncodingError(f"VRED {RedKind(w.kind).name} in mode {mode.name}: needs TREE (F_OPCODE)")
            if w.op is Opcode.VSETMODE:
                mode = Mode(w.mode)
            if w.op is Opcode.VSETI:
                pc = _next(pc)
                vector.check_word(_word_at(words, pc), immediate=True)
            if w.op is Opcode.VLOOP:
                if loop:
                    raise EncodingError("VLOOP inside a loop (F_LOOP)")
                top = _next(pc)
                loop = top, (top + w.vb) % IMEM_WORDS, mode
            pc = _next(pc)
        except EncodingError as wrong:
            raise EncodingError(f"IMEM[{pc}]: {wrong}") from None
    raise EncodingError(f"IMEM[{pc}]: the kernel never reaches a VHALT")


def _next(pc: int) -> int:
    return (pc + 1) % IMEM_WORDS


def _word_at(words: Mapping[int, int], pc: int) -> int:
    if pc not in words:
        raise EncodingError("nothing was written here")
    return words[pc]


def _fetch(words: Mapping[int, int], pc: int) -> Word:
    word = _word_at(words, pc)
    vector.check_word(word)
    return vector.decode_word(word)


def _chain_at(words: Mapping[int, int], pc: int, mode: Mode, end: int | None) -> int:
    """Check the chain that starts at `pc`; returns the address after it."""
    if mode not in STAGES:
        raise EncodingError("an ALU word in mode TREE (F_OPCODE)")
    stages: list[Word] = []
    for stage in range(STAGES[mode]):
        if stage and pc == end:
            raise EncodingError(f"a {mode.name} chain straddles the end of a loop")
        stages.append(_fetch(words, pc))
        pc = _next(pc)
    chain(stages)
    return pc


def program(payloads: Iterable[int], unit: UnitType | int, *, image: dict[int, int] | None = None) -> None:
    """The CU_INST payloads of one unit, in order; for a vector core also every kernel that a RUN starts.

    `image` is what instruction memory held before; it is updated, as memory outlives programs.
    """
    image = {} if image is None else image
    mode = Mode.FLAT
    for number, payload in enumerate(payloads):
        try:
            instruction(payload, unit)
            if unit == UnitType.VECTOR:
                i = vector.decode(payload)
                if i.op == vector.Envelope.IMEM:
                    image[i.addr] = i.word
                elif i.op == vector.Envelope.RUN:
                    mode = kernel(image, pc=i.pc, mode=mode)
        except EncodingError as wrong:
            raise EncodingError(f"instruction {number}: {wrong}") from None
