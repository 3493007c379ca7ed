"""The text of 32-bit vector words, both ways.

    VFMA v3, v1, s4, k1 if p0       ALU word; `if !p0` for the opposite mask
    VADD v7, c, s4 vb=s0            chain stage; unused sources appear where they are not V[0]
    VCMPLT p1, v0, k0               compares name the predicate register
    VLD v0, A2+8, FP16              VST v0, A2-1, FP32        VCVT v1, v0, FP16
    VRED s1, v0, v0, SUM            VBCAST v2, s4             VBCAST s1, v0
    VSHUF v1, v0, s3                VSETVL s0                 VSETMODE TREE
    VSETI s4                        VSETI k3                  .imm 0xbfb8aa
    VLOOP s5, 12                    VFILL A0, 64              VDRAIN A1, 32
    VDRAIN A1, 32 -> (1,0) buf=2 signal                       VBAR, VHALT

A word that no legal instruction spells is `.word 0x...`.
"""

from __future__ import annotations

import re

from .fields import Field
from .flit import xy
from .lexer import Cursor, Token, encoded, fields_text, parse_field, parse_value, value_text
from .vector import (
    ALU_OPS,
    COMPARES,
    IMMEDIATE,
    LAYOUTS,
    OPERANDS,
    VDRAIN_PEER,
    WORD_WIDTH,
    Mask,
    Opcode,
    Source,
    Word,
    decode_word,
    layout_of,
)

_SOURCE_LETTERS = {Source.V: "v", Source.S: "s", Source.C: "c", Source.K: "k"}
_REGISTER = re.compile(r"([vskcpA])([0-9]{1,2})?$")


def _source_text(selector: int, index: int) -> str:
    return "c" if selector == Source.C and index == 0 else f"{_SOURCE_LETTERS[Source(selector)]}{index}"


def _alu_text(w: Word) -> str:
    used = OPERANDS[w.op]
    target = f"p{w.pr}" if w.op in COMPARES else f"v{w.vd}"
    sources = {"a": (w.sa, w.va), "b": (w.sb, w.vb), "c": (w.sc, w.vc)}
    text = f"{w.op.name} {target}, {', '.join(_source_text(*sources[name]) for name in used)}"
    if w.op in COMPARES:
        rest = (f" vd={w.vd}" if w.vd else "") + (f" pm={Mask(w.pm).name}" if w.pm else "")
    elif w.pm in (Mask.WHERE, Mask.UNLESS):
        rest = f" if {'!' if w.pm == Mask.UNLESS else ''}p{w.pr}"
    else:
        rest = (f" pm={Mask(w.pm).name}" if w.pm else "") + (f" pr={w.pr}" if w.pr else "")
    for name, source in sources.items():
        if name not in used and source != (Source.V, 0):
            rest += f" v{name}={_source_text(*source)}"
    return text + rest


def _walk_text(w: Word) -> str:
    return f"A{w.ad}{w.offset:+d}" if w.offset else f"A{w.ad}"


def word_text(word: int) -> str:
    """The instruction that a 32-bit word spells, or `.word 0x...` where it spells none."""
    layout = layout_of(word)
    if not layout.accepts(word):
        return f".word {word:#010x}"
    w = decode_word(word)
    if w.op in ALU_OPS:
        return _alu_text(w)
    dtype = value_text(LAYOUTS[Opcode.VLD].fields["dtype"], w.dtype)
    match w.op:
        case Opcode.VLD | Opcode.VST:
            rest = f"v{w.vd}, {_walk_text(w)}, {dtype}"
        case Opcode.VCVT:
            rest = f"v{w.vd}, v{w.va}, {dtype}"
        case Opcode.VRED:
            kind = value_text(layout.fields["kind"], w.kind)
            rest = f"s{w.vd}, v{w.va}, v{w.vb}, {kind}" + (f" pr={w.pr}" if w.pr else "")
        case Opcode.VBCAST if w.sa == Source.S:
            rest = f"v{w.vd}, s{w.va}"
        case Opcode.VBCAST:
            rest = f"s{w.vd}, v{w.va}" + fields_text(layout, word, ("op", "vd", "va"))
        case Opcode.VSHUF:
            rest = f"v{w.vd}, v{w.va}, s{w.vb}"
        case Opcode.VSETVL:
            rest = f"s{w.va}"
        case Opcode.VSETMODE:
            rest = value_text(layout.fields["mode"], w.mode)
        case Opcode.VSETI if w.sa == Source.K:
            rest = "k3" + fields_text(layout, word, ("op", "sa"))
        case Opcode.VSETI:
            rest = f"s{w.vd}" + fields_text(layout, word, ("op", "vd"))
        case Opcode.VLOOP:
            rest = f"s{w.va}, {w.vb}"
        case Opcode.VFILL:
            rest = f"A{w.ad}, {w.l1}"
        case Opcode.VDRAIN if layout is VDRAIN_PEER:
            rest = f"A{w.ad}, {w.l1} -> ({w.x},{w.y})" + fields_text(layout, word, ("op", "peer", "ad", "l1", "x", "y"))
        case Opcode.VDRAIN:
            rest = f"A{w.ad}, {w.l1}"
        case _:
            rest = ""
    return f"{w.op.name} {rest}".rstrip()


def immediate_text(word: int) -> str:
    """The second word of a VSETI."""
    return f".imm {word:#08x}" if IMMEDIATE.accepts(word) else f".word {word:#010x}"


# ---- parsing -----------------------------------------------------------------------------------------


def _register(cursor: Cursor, letters: str, what: str) -> tuple[str, int]:
    """A register such as `v7`: its letter and index. Only `c` may stand without an index."""
    token = cursor.name(what)
    found = _REGISTER.match(token.text)
    limit = {"A": 8, "p": 4}.get(token.text[0], 16)
    if not found or found[1] not in letters or (found[2] is None and found[1] != "c"):
        raise cursor.error(f"expected {what}, got {token.text!r}", token)
    index = int(found[2] or 0)
    if index >= limit:
        raise cursor.error(f"{token.text}: there are {limit} such registers", token)
    return found[1], index


def _source(cursor: Cursor, name: str, values: dict[str, int]) -> None:
    letter, index = _register(cursor, "vskc", "a source (v, s, k or c)")
    values[f"s{name}"] = next(selector for selector, text in _SOURCE_LETTERS.items() if text == letter)
    values[f"v{name}"] = index


def _alu(cursor: Cursor, op: Opcode, values: dict[str, int]) -> None:
    layout = LAYOUTS[op]
    if op in COMPARES:
        values["pr"] = _register(cursor, "p", "a predicate register")[1]
    else:
        values["vd"] = _register(cursor, "v", "a vector register")[1]
    for name in OPERANDS[op]:
        cursor.expect(",")
        _source(cursor, name, values)
    if op not in COMPARES and cursor.accept("if"):
        values["pm"] = Mask.UNLESS if cursor.accept("!") else Mask.WHERE
        values["pr"] = _register(cursor, "p", "a predicate register")[1]
    while not cursor.done:
        name = cursor.next.text
        if name in ("va", "vb", "vc") and name not in values:
            cursor.take()
            cursor.expect("=")
            _source(cursor, name[1], values)
        else:
            parse_field(cursor, layout, values, ("sa", "sb", "sc"))


def _walk(cursor: Cursor, values: dict[str, int], offset: Field) -> None:
    values["ad"] = _register(cursor, "A", "a descriptor (A0..A7)")[1]
    values["offset"] = 0
    if cursor.next.text == "-" or cursor.accept("+"):
        values["offset"] = cursor.number("offset (14 bits, signed)", offset.least, offset.greatest)


def _region(cursor: Cursor, values: dict[str, int]) -> None:
    values["ad"] = _register(cursor, "A", "a descriptor (A0..A7)")[1]
    cursor.expect(",")
    values["l1"] = cursor.number("L1 word (9 bits)", 0, 511)


def _after_comma(cursor: Cursor, letters: str, what: str) -> int:
    cursor.expect(",")
    return _register(cursor, letters, what)[1]


def parse_word(cursor: Cursor) -> int:
    """One word from where the cursor stands to the end of the line, or to VSETI's immediate.

    A comma stays unread after `VSETI s4`, so that a caller which places two words can take the immediate.
    """
    start = cursor.name("a vector instruction")
    if start.text in (".word", ".imm"):
        width = WORD_WIDTH if start.text == ".word" else IMMEDIATE.fields["value"].width
        value = cursor.number(f"{start.text} ({width} bits)", 0, (1 << width) - 1)
        cursor.finish()
        return value
    try:
        op = Opcode[start.text]
    except KeyError:
        raise cursor.error(f"{start.text!r} is no vector instruction", start) from None
    layout = LAYOUTS[op]
    values: dict[str, int] = {}
    if op in ALU_OPS:
        _alu(cursor, op, values)
        return encoded(cursor, layout, start, values)
    match op:
        case Opcode.VLD | Opcode.VST:
            values["vd"] = _register(cursor, "v", "a vector register")[1]
            cursor.expect(",")
            _walk(cursor, values, layout.fields["offset"])
            _dtype(cursor, layout.fields["dtype"], values)
        case Opcode.VCVT:
            values["vd"] = _register(cursor, "v", "a vector register")[1]
            values["va"] = _after_comma(cursor, "v", "a vector register")
            _dtype(cursor, layout.fields["dtype"], values)
        case Opcode.VRED:
            values["vd"] = _register(cursor, "s", "a scalar register")[1]
            values["va"] = _after_comma(cursor, "v", "a vector register")
            values["vb"] = _after_comma(cursor, "v", "a vector register")
            cursor.expect(",")
            values["kind"] = parse_value(cursor, layout.fields["kind"], "VRED.kind")
        case Opcode.VBCAST:
            letter, values["vd"] = _register(cursor, "vs", "a vector or scalar register")
            other = "s" if letter == "v" else "v"
            values["va"] = _after_comma(cursor, other, "a scalar register" if other == "s" else "a vector register")
            if letter == "v":
                values["sa"] = Source.S
        case Opcode.VSHUF:
            values["vd"] = _register(cursor, "v", "a vector register")[1]
            values["va"] = _after_comma(cursor, "v", "a vector register")
            values["vb"] = _after_comma(cursor, "s", "a scalar register")
        case Opcode.VSETVL:
            values["va"] = _register(cursor, "s", "a scalar register")[1]
        case Opcode.VSETMODE:
            values["mode"] = parse_value(cursor, layout.fields["mode"], "VSETMODE.mode")
        case Opcode.VSETI:
            _seti(cursor, values)
            if cursor.next.text == ",":
                return encoded(cursor, layout, start, values)
        case Opcode.VLOOP:
            values["va"] = _register(cursor, "s", "a scalar register")[1]
            cursor.expect(",")
            values["vb"] = cursor.number("body length (4 bits)", 0, 15)
        case Opcode.VFILL:
            _region(cursor, values)
        case Opcode.VDRAIN:
            _region(cursor, values)
            if cursor.accept("->"):
                layout = VDRAIN_PEER
                values["x"], values["y"] = xy(cursor.node())
        case _:
            pass
    while not cursor.done:
        parse_field(cursor, layout, values)
    return encoded(cursor, layout, start, values)


def _dtype(cursor: Cursor, item: Field, values: dict[str, int]) -> None:
    cursor.expect(",")
    values["dtype"] = parse_value(cursor, item, "dtype")


def _seti(cursor: Cursor, values: dict[str, int]) -> None:
    token: Token = cursor.next
    letter, index = _register(cursor, "sk", "a scalar register or k3")
    if letter == "s":
        values["vd"] = index
    elif index == 3:
        values["sa"] = Source.K
    else:
        raise cursor.error(f"{token.text}: only k3 can be written", token)
