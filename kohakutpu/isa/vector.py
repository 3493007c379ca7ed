"""Vector core encodings: the CU_INST envelope, descriptors and the 32-bit instruction word.

Spec: the 32-bit instruction word, faults, envelope, descriptors. `LAYOUTS` holds one layout per opcode
(`VDRAIN` and `VDRAIN_PEER` share one); `encode` and `decode_word` choose it, `check_word` validates.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import lru_cache

from .fields import EncodingError, Field, Layout, field
from .flit import PAYLOAD_WIDTH

WORD_WIDTH = 32
L1_WORDS = 512
IMEM_WORDS = 512
DESCRIPTORS = 8
DIMS = 4
VL_MAX = 128
WALK_LIMIT = 256  # words of one VFILL or VDRAIN


class Opcode(IntEnum):
    VMOV = 0x00
    VNEG = 0x01
    VABS = 0x02
    VADD = 0x03
    VSUB = 0x04
    VMUL = 0x05
    VFMA = 0x06
    VFNMA = 0x07
    VMAX = 0x08
    VMIN = 0x09
    VSEL = 0x0A
    VCMPLT = 0x0B
    VCMPGT = 0x0C
    VCMPEQ = 0x0D
    VEXP2 = 0x0E
    VLOG2 = 0x0F
    VINV = 0x10
    VRSQRT = 0x11
    VCVT = 0x12
    VRED = 0x13
    VLD = 0x14
    VST = 0x15
    VBCAST = 0x16
    VSHUF = 0x17
    VSETVL = 0x18
    VSETMODE = 0x19
    VSETI = 0x1A
    VLOOP = 0x1B
    VBAR = 0x1C
    VFILL = 0x1D
    VDRAIN = 0x1E
    VHALT = 0x1F


class Source(IntEnum):
    """Where an ALU operand comes from."""

    V = 0
    S = 1
    C = 2
    K = 3


class Mask(IntEnum):
    """Predication (pm)."""

    ALWAYS = 0
    WHERE = 1
    UNLESS = 2
    UNLESS_ALSO = 3


class DType(IntEnum):
    FP16 = 1
    FP32 = 2


class Mode(IntEnum):
    FLAT = 0
    D2 = 1
    D4 = 2
    TREE = 3


STAGES = {Mode.FLAT: 1, Mode.D2: 2, Mode.D4: 4}


class RedKind(IntEnum):
    SUM = 0
    MAX = 1
    MIN = 2
    SUMSQ = 3
    DOT = 4
    EXPSUM = 5
    ANY = 6
    ALL = 7


class Fault(IntEnum):
    F_DTYPE = 1
    F_VSRC = 2
    F_CHAIN = 3
    F_OPCODE = 4
    F_LEN = 5
    F_LOOP = 6
    F_VL = 7
    F_REDVL = 8
    F_CUDATA = 9


COMPARES = frozenset({Opcode.VCMPLT, Opcode.VCMPGT, Opcode.VCMPEQ})
# The source fields each ALU opcode computes with, in the order that people write them.
OPERANDS: dict[Opcode, tuple[str, ...]] = {
    op: ("a",) for op in (Opcode.VMOV, Opcode.VNEG, Opcode.VABS, Opcode.VEXP2, Opcode.VLOG2, Opcode.VINV, Opcode.VRSQRT)
}
OPERANDS |= {op: ("a", "c") for op in (Opcode.VADD, Opcode.VSUB)}
OPERANDS |= {op: ("a", "b") for op in (Opcode.VMUL, Opcode.VMAX, Opcode.VMIN, *COMPARES)}
OPERANDS |= {op: ("a", "b", "c") for op in (Opcode.VFMA, Opcode.VFNMA, Opcode.VSEL)}
ALU_OPS = frozenset(OPERANDS)

# ---- the 32-bit word ---------------------------------------------------------------------------------

_DTYPE = field("dtype", 26, 24, "format in L1", default=DType.FP16, enum=DType)
_AD = field("ad", 23, 21, "descriptor")
_VD = field("vd", 20, 17, "destination register")
_VA = field("va", 16, 13, "first source register")
_VB = field("vb", 12, 9, "second source register")
_PR = field("pr", 4, 3, "predicate register")
_OFFSET = field("offset", 13, 0, "added to the descriptor's walk, in L1 words", signed=True)
_L1 = field("l1", 8, 0, "first L1 word")
_ALU = (
    field("sa", 26, 25, "selector of va", enum=Source),
    field("sb", 24, 23, "selector of vb", enum=Source),
    field("sc", 22, 21, "selector of vc", enum=Source),
    _VD,
    _VA,
    _VB,
    field("vc", 8, 5, "third source register"),
    _PR,
    field("pm", 2, 1, "predication: 0 always, 1 where P[pr] = 1, 2 and 3 where P[pr] = 0", enum=Mask),
)
_MEMORY = (_DTYPE, _AD, _VD, _OFFSET)


def _word(op: Opcode, fields: Sequence[Field], meaning: str, name: str = "") -> Layout:
    opcode = field("op", 31, 27, "opcode", default=op, enum=Opcode, fixed=True)
    return Layout(name or op.name, WORD_WIDTH, [opcode, *fields], meaning)


def _peer(value: int) -> Field:
    return field("peer", 24, 24, "1 sends to a node as CU_DATA", default=value, fixed=True)


_ALU_MEANING = {
    Opcode.VMOV: "a",
    Opcode.VNEG: "-a",
    Opcode.VABS: "|a|",
    Opcode.VADD: "a + c",
    Opcode.VSUB: "a - c",
    Opcode.VMUL: "a * b",
    Opcode.VFMA: "a * b + c",
    Opcode.VFNMA: "-(a * b) + c",
    Opcode.VMAX: "b where a < b, else a",
    Opcode.VMIN: "b where a > b, else a",
    Opcode.VSEL: "a where c is not zero, else b",
    Opcode.VCMPLT: "P[pr] = a < b; vd only orders",
    Opcode.VCMPGT: "P[pr] = a > b; vd only orders",
    Opcode.VCMPEQ: "P[pr] = a == b; vd only orders",
    Opcode.VEXP2: "2^a",
    Opcode.VLOG2: "log2 a",
    Opcode.VINV: "1 / a",
    Opcode.VRSQRT: "1 / sqrt a",
}
LAYOUTS: dict[Opcode, Layout] = {op: _word(op, _ALU, meaning) for op, meaning in _ALU_MEANING.items()}
LAYOUTS |= {
    Opcode.VCVT: _word(Opcode.VCVT, (_DTYPE, _VD, _VA), "V[vd] = V[va] through a format; FP32 is a raw copy"),
    Opcode.VRED: _word(
        Opcode.VRED,
        (
            field("vd", 20, 17, "destination scalar register"), _VA,
            field("vb", 12, 9, "second source; receives the leaf values of EXPSUM"),
            field("kind", 7, 5, "reduction", enum=RedKind), _PR,
        ),
        "S[vd] = reduction; TREE mode and VL % 16 = 0 except for ANY and ALL",
    ),
    Opcode.VLD: _word(Opcode.VLD, _MEMORY, "V[vd] from L1, whole chunks, along descriptor ad"),
    Opcode.VST: _word(Opcode.VST, _MEMORY, "V[vd] to L1, whole chunks, along descriptor ad"),
    Opcode.VBCAST: _word(
        Opcode.VBCAST,
        (field("sa", 26, 25, "S: V[vd] = S[va] in all lanes; else S[vd] = element 0 of V[va]", enum=Source), _VD, _VA),
        "between a scalar and a vector register",
    ),
    Opcode.VSHUF: _word(
        Opcode.VSHUF, (_VD, _VA, field("vb", 12, 9, "scalar register with the rotation")),
        "V[vd][16c+i] = V[va][16c + (i + S[vb]) mod 16]",
    ),
    Opcode.VSETVL: _word(Opcode.VSETVL, (field("va", 16, 13, "scalar register, raw integer 1..128"),), "VL = S[va]"),
    Opcode.VSETMODE: _word(Opcode.VSETMODE, (field("mode", 14, 13, "mode", enum=Mode),), "set VMODE, lanes drained"),
    Opcode.VSETI: _word(
        Opcode.VSETI,
        (field("sa", 26, 25, "K: write K3; else S[vd]", enum=Source), field("vd", 20, 17, "scalar register")),
        "load the 24-bit immediate of the next word",
    ),
    Opcode.VLOOP: _word(
        Opcode.VLOOP,
        (field("va", 16, 13, "scalar register, raw count"), field("vb", 12, 9, "body length in IMEM words")),
        "run the next vb words max(1, S[va]) times",
    ),
    Opcode.VBAR: _word(Opcode.VBAR, (), "wait for every outstanding fill"),
    Opcode.VFILL: _word(Opcode.VFILL, (_AD, _L1), "memory to L1, words along descriptor ad"),
    Opcode.VDRAIN: _word(Opcode.VDRAIN, (_peer(0), _AD, _L1), "L1 to memory, words along descriptor ad"),
    Opcode.VHALT: _word(Opcode.VHALT, (), "wait for lanes and fills, then finish"),
}  # fmt: skip
VDRAIN_PEER = _word(
    Opcode.VDRAIN,
    (
        field("signal", 25, 25, "ask the receiver for DATA_RECEIVED"), _peer(1), _AD,
        field("x", 20, 17, "node column"), field("y", 16, 13, "node row"), field("buf", 12, 9, "its buffer"), _L1,
    ),
    "L1 to a node; descriptor ad holds a peer record and the count", "VDRAIN, peer",
)  # fmt: skip
IMMEDIATE = Layout(
    "immediate", WORD_WIDTH, [field("value", 23, 0, "E8M15 word or integer", hex=True)], "second word of VSETI"
)

_ALU_WORD = LAYOUTS[Opcode.VMOV]
_NAMES = list(
    dict.fromkeys(name for layout in [*LAYOUTS.values(), VDRAIN_PEER] for name in layout.fields if name != "op")
)
Word = namedtuple("Word", ["op", *_NAMES])
Word.__doc__ = (
    "A decoded 32-bit word. `op` is an `Opcode`. sa, sb, sc, vd, va, vb, vc, pr and pm hold the raw ALU "
    "positions in every word unless the opcode's own format places that name elsewhere; other names that the "
    "opcode does not have are 0."
)


def layout_of(word: int) -> Layout:
    """The layout that the opcode (and the peer bit of VDRAIN) of a 32-bit word selects."""
    op = Opcode(_ALU_WORD.get(word, "op"))
    if op is Opcode.VDRAIN and VDRAIN_PEER.get(word, "peer"):
        return VDRAIN_PEER
    return LAYOUTS[op]


def encode(op: Opcode | int, **fields: int) -> int:
    """One 32-bit word; `EncodingError` names the opcode, field and width.

    VDRAIN takes the peer form when `peer=1` or any of its fields is given. VSETI's immediate is a word of
    its own (`IMMEDIATE`).
    """
    try:
        layout = LAYOUTS[Opcode(op)]
    except ValueError:
        raise EncodingError(f"vector word: opcode {op} does not fit 5 bits") from None
    if layout is LAYOUTS[Opcode.VDRAIN] and (fields.get("peer") or fields.keys() & {"x", "y", "buf", "signal"}):
        layout = VDRAIN_PEER
    return layout.encode(**fields)


@lru_cache(maxsize=1 << 16)
def decode_word(word: int) -> Word:
    """Every field of a 32-bit word as the core reads it; total."""
    layout = layout_of(word)
    values = dict.fromkeys(_NAMES, 0) | _ALU_WORD.decode(word) | layout.decode(word)
    return Word(**(values | {"op": Opcode(values["op"])}))


def check_word(word: int, *, immediate: bool = False) -> None:
    """Refuse a 32-bit word with a reserved bit or an illegal enumeration; `immediate` after a VSETI."""
    if word < 0 or word >> WORD_WIDTH:
        raise EncodingError(f"vector word: {word:#x} is wider than {WORD_WIDTH} bits")
    (IMMEDIATE if immediate else layout_of(word)).check(word)


# ---- the CU_INST envelope ----------------------------------------------------------------------------


class Envelope(IntEnum):
    IMEM = 1
    DESC = 2
    RUN = 3


class DescField(IntEnum):
    """Which part of a descriptor a DESC writes; 5..7 are ignored."""

    BASE = 0
    DIM0 = 1
    DIM1 = 2
    DIM2 = 3
    DIM3 = 4


_VALUE_BITS = ((68, 63), (245, 212))
_DESC_AD = field("ad", 251, 249, "descriptor")


def _envelope(op: Envelope) -> Field:
    return field("op", 255, 252, "opcode", default=op, enum=Envelope, fixed=True)


def _dim_only(v: Mapping[str, int]) -> str | None:
    """field is one of DIM0 to DIM3."""
    return "field BASE is not a dimension" if v["field"] == DescField.BASE else None


def _ignored_high(v: Mapping[str, int]) -> str | None:
    """A dimension's value has 34 bits; only a base uses all 40."""
    if v["field"] != DescField.BASE and v["value"] >> 34:
        return f"value {v['value']:#x} does not fit the 34 bits of a dimension"
    return None


IMEM = Layout(
    "IMEM", PAYLOAD_WIDTH,
    [_envelope(Envelope.IMEM), field("addr", 251, 243, "IMEM address"), field("word", 31, 0, "32-bit word", hex=True)],
    "write one instruction word",
)  # fmt: skip
DESC = Layout(
    "DESC", PAYLOAD_WIDTH,
    [
        _envelope(Envelope.DESC), _DESC_AD, field("field", 248, 246, "part of the descriptor", enum=DescField),
        Field("value", _VALUE_BITS, "40-bit base, or a dimension's stride and bound", hex=True),
    ],
    "write one descriptor field", [_ignored_high],
)  # fmt: skip
DESC_BASE = Layout(
    "DESC base", PAYLOAD_WIDTH,
    [
        _envelope(Envelope.DESC), _DESC_AD,
        field("field", 248, 246, "part of the descriptor", enum=DescField, fixed=True),
        Field("base", _VALUE_BITS, "byte address, L1 word or peer record", hex=True),
    ],
    "DESC of field 0",
)  # fmt: skip
DESC_DIM = Layout(
    "DESC dimension", PAYLOAD_WIDTH,
    [
        _envelope(Envelope.DESC), _DESC_AD,
        field("field", 248, 246, "part of the descriptor", default=DescField.DIM0, enum=DescField),
        field("stride", 245, 228, "step in bytes (VFILL, VDRAIN) or L1 words (VLD, VST)", signed=True),
        field("bound", 227, 212, "steps; 0 acts as 1"),
    ],
    "DESC of fields 1 to 4", [_dim_only],
)  # fmt: skip
RUN = Layout(
    "RUN", PAYLOAD_WIDTH, [_envelope(Envelope.RUN), field("pc", 251, 243, "first IMEM address")], "run a kernel"
)
ENVELOPES: dict[int, Layout] = {Envelope.IMEM: IMEM, Envelope.DESC: DESC, Envelope.RUN: RUN}


def _remote_peer(v: Mapping[str, int]) -> str | None:
    """A remote drain (fin not 0) needs an acknowledgement node; mesh needs fin."""
    if v["fin"] and not (v["ack_y"] or v["ack_x"]):
        return "a remote drain must name an acknowledgement node (ack_y, ack_x)"
    if v["mesh"] and not v["fin"]:
        return f"mesh = {v['mesh']} with fin = 0: a drain is remote only when fin is not 0"
    return None


PEER_RECORD = Layout(
    "peer record", 40,
    [
        field("fin", 33, 26, "{fin_y,fin_x} in the far mesh; not 0 makes the drain remote", hex=True),
        field("mesh", 25, 24, "far mesh"),
        field("ack_y", 23, 20, "row that DATA_RECEIVED goes to"),
        field("ack_x", 19, 16, "column that DATA_RECEIVED goes to; (0,0) answers the sender"),
        field("offset", 15, 0, "first granule in the receiver's buffer"),
    ],
    "descriptor base of a peer VDRAIN; the count is the bound product", [_remote_peer],
)  # fmt: skip

Instruction = namedtuple("Instruction", "op addr word pc ad field value stride bound")
Instruction.__doc__ = (
    "A decoded CU_INST payload of a vector core; every name is the raw field, whatever the opcode, so that "
    "`value` is a base and `stride`, `bound` a dimension."
)


@lru_cache(maxsize=1 << 16)
def decode(payload: int) -> Instruction:
    """Every field of a CU_INST payload as the vector core reads it; total, unknown opcodes included."""
    desc = DESC.decode(payload)
    return Instruction(
        op=desc["op"], addr=IMEM.get(payload, "addr"), word=IMEM.get(payload, "word"), pc=RUN.get(payload, "pc"),
        ad=desc["ad"], field=desc["field"], value=desc["value"],
        stride=DESC_DIM.get(payload, "stride"), bound=DESC_DIM.get(payload, "bound"),
    )  # fmt: skip


def check(payload: int) -> None:
    """Refuse a payload that is no legal IMEM, DESC or RUN. IMEM's word may be an immediate: see `check_word`."""
    op = IMEM.get(payload, "op")
    if op not in ENVELOPES:
        raise EncodingError(f"vector instruction: opcode {op} is none of IMEM 1, DESC 2, RUN 3")
    ENVELOPES[op].check(payload)
