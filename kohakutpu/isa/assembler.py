"""Text to flits and payloads, and back.

One item a line; `#` and `;` start comments. A flit is its header, a bar, and what its type carries:

    CU_INST (1,1)->(2,1) txn=0x40 last | FILL addr=0x1000 n=8 sel=B
    CU_INST (1,1)->(1,0) | IMEM 3: VMUL v7, v0, s4
    CU_INST (1,1)->(1,0) | DESC A1.base = 0x8000
    CU_INST (1,1)->(1,0) | DESC A1.dim0 stride=32 bound=9
    CU_INST (1,1)->(1,0) | DESC A1.peer offset=64 ack_x=1 ack_y=1
    MEM_RD_REQ (2,1)->(0,1) last | addr=0x1000 len=3 stream quant count=8
    CU_SIGNAL (2,1)->(1,1) last | INST_COMPLETE arg=0x3
    CU_CTRL (0,0)->(2,1) txn=1 last | READ index=CAPS
    CU_DATA (2,1)->(1,0) txn=2 | buf=0 offset=0 len=7 flags=0x1 ack_y=1 ack_x=1
    MEM_WR_DATA (2,1)->(0,1) txn=2 last | 0x0123...

A line without a header is a CU_INST payload of its own: `GEMM gm=4 gn=8 nk=2`. Fields at their default are
left out, a lone 1-bit flag is just its name, and any payload may be given as one number, which is also how
one that is not legal comes out. Vector words are described in `wordtext`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from . import cluster, vector
from .fields import EncodingError, Layout
from .flit import PAYLOAD_MASK, PAYLOAD_WIDTH, Flit, FlitType, xy
from .framing import Framing
from .lexer import AssemblyError, Cursor, Token, encoded, fields_text, parse_fields, parse_value, value_text
from .memory import MEM_ACK, MEM_REQ, MEM_WR
from .signals import CU_CTRL_REPLY, CU_CTRL_REQUEST, CU_DATA, CU_SIGNAL, ControlOp, SignalCode, UnitType
from .wordtext import immediate_text, parse_word, word_text

__all__ = ["AssemblyError", "Disassembler", "assemble", "assemble_words", "disassemble", "disassemble_words"]

_CLUSTER = {layout.name: layout for layout in cluster.LAYOUTS.values()}
_DESC_TARGET = re.compile(r"A([0-7])\.(base|peer|dim[0-3])$")
_PLAIN_VSETI = re.compile(r"VSETI [sk][0-9]+$")

# ---- payload to text ---------------------------------------------------------------------------------


def _raw(payload: int, why: EncodingError | None = None) -> str:
    return f"0x{payload:064x}" + (f"  # {why}" if why else "")


def _vector_text(payload: int, immediate: bool) -> str:
    i = vector.decode(payload)
    if i.op == vector.Envelope.IMEM:
        return f"IMEM {i.addr}: {immediate_text(i.word) if immediate else word_text(i.word)}"
    if i.op == vector.Envelope.RUN:
        return f"RUN pc={i.pc}"
    if i.field == vector.DescField.BASE:
        return f"DESC A{i.ad}.base = {i.value:#x}"
    return f"DESC A{i.ad}.dim{i.field - 1} stride={i.stride} bound={i.bound}"


def instruction_text(payload: int, unit: UnitType | int | None = None, *, immediate: bool = False) -> str:
    """One CU_INST payload. Without `unit` it is a vector instruction where it is a legal one.

    (A legal IMEM, DESC or RUN has bits set only where FILL, GEMM and DRAIN leave them clear, except in
    payloads that do nothing useful on a cluster.) `immediate` marks an IMEM word that follows a VSETI.
    """
    checks = {UnitType.VECTOR: vector.check, UnitType.CLUSTER: cluster.check}
    if unit is not None:
        checks = {kind: check for kind, check in checks.items() if kind == unit}
    wrong = None
    for kind, check in checks.items():
        try:
            check(payload)
        except EncodingError as why:
            wrong = why
            continue
        if kind == UnitType.VECTOR:
            return _vector_text(payload, immediate)
        layout = cluster.LAYOUTS[cluster.WORD.get(payload, "op")]
        return layout.name + fields_text(layout, payload)
    return _raw(payload, wrong)


def _layout_text(layout: Layout, payload: int, skip: str = "") -> str:
    try:
        layout.check(payload)
    except EncodingError as why:
        return _raw(payload, why)
    lead = f"{value_text(layout.fields[skip], layout.get(payload, skip))}" if skip else ""
    return (lead + fields_text(layout, payload, (skip,))).strip()


def _payload_text(flit: Flit, descriptor: bool) -> str:
    payload = flit.payload
    match flit.type:
        case FlitType.MEM_RD_REQ:
            return _layout_text(MEM_REQ, payload) or "addr=0x0"
        case FlitType.MEM_WR_REQ:
            return _layout_text(MEM_WR, payload) or "addr=0x0"
        case FlitType.MEM_WR_ACK:
            return _layout_text(MEM_ACK, payload)
        case FlitType.CU_SIGNAL if CU_SIGNAL.get(payload, "code") in list(SignalCode):
            return _layout_text(CU_SIGNAL, payload, "code")
        case FlitType.CU_SIGNAL:
            return _layout_text(CU_SIGNAL, payload)
        case FlitType.CU_CTRL:
            reply = CU_CTRL_REPLY.get(payload, "op") == ControlOp.REPLY
            text = _layout_text(CU_CTRL_REPLY if reply else CU_CTRL_REQUEST, payload, "op")
            return text if CU_CTRL_REPLY.get(payload, "index") or text.startswith("0x") else _with_caps(text)
        case FlitType.CU_DATA if descriptor and CU_DATA.accepts(payload):
            return _layout_text(CU_DATA, payload) or "buf=0"
        case _:
            return _raw(payload)


def _with_caps(text: str) -> str:
    """CAPS is index 0, a default, but the one index that everybody wants to see."""
    operation, _, rest = text.partition(" ")
    return " ".join(filter(None, (operation, "index=CAPS", rest)))


def _header_text(flit: Flit) -> str:
    flit.to_int()  # refuses a field that does not fit
    known = flit.type in list(FlitType)
    kind = FlitType(flit.type).name if known else f"TYPE_{flit.type}"
    (dx, dy), (sx, sy) = xy(flit.dst), xy(flit.src)
    text = f"{kind} ({sx},{sy})->({dx},{dy})"
    return text + "".join(
        part for part, shown in (
            (f" txn={flit.txn:#04x}", flit.txn), (f" rsvd={flit.rsvd}", flit.rsvd), (" last", flit.last)
        ) if shown
    )  # fmt: skip


class _Immediates:
    """Follows IMEM writes per receiver, since only the word before tells an immediate from an instruction."""

    def __init__(self):
        self._expected: dict[int | None, int] = {}

    def next(self, receiver: int | None, payload: int) -> bool:
        i = vector.decode(payload)
        if i.op != vector.Envelope.IMEM:
            return False
        immediate = self._expected.pop(receiver, None) == i.addr
        if not immediate and vector.decode_word(i.word).op is vector.Opcode.VSETI:
            self._expected[receiver] = (i.addr + 1) % vector.IMEM_WORDS
        return immediate


class Disassembler:
    """The text of flits and CU_INST payloads in the order of one stream: all items of a program, or one link's flits.

    It follows CU_DATA bursts and the immediates of VSETI, which single items do not show. `units` maps a packed
    destination node to its CU_TYPE and `unit` is the type for everything else; where neither tells, the payload does
    (see `instruction_text`).
    """

    def __init__(self, units: Mapping[int, int] | None = None, unit: UnitType | int | None = None):
        self._units = units or {}
        self._unit = unit
        self._framing = Framing()
        self._immediates = _Immediates()

    def body(self, flit: Flit) -> str:
        """What the flit carries, without its header; may be empty."""
        if flit.type != FlitType.CU_INST:
            return _payload_text(flit, self._framing.is_descriptor(flit))
        immediate = self._immediates.next(flit.dst, flit.payload)
        return instruction_text(flit.payload, self._units.get(flit.dst, self._unit), immediate=immediate)

    def line(self, item: Flit | int) -> str:
        """One item. Raises `EncodingError` for one that is no flit or 256-bit payload."""
        if isinstance(item, Flit):
            head = _header_text(item)
            body = self.body(item)
            return f"{head} | {body}" if body else head
        if isinstance(item, int) and 0 <= item <= PAYLOAD_MASK:
            return instruction_text(item, self._unit, immediate=self._immediates.next(None, item))
        raise EncodingError(f"expected a Flit or a {PAYLOAD_WIDTH}-bit payload, got {item!r}")


def disassemble(
    items: Iterable[Flit | int], *, units: Mapping[int, int] | None = None, unit: UnitType | int | None = None
) -> str:
    """The text of flits and CU_INST payloads (ints), a line each; `assemble` gives the same items back.

    `units` and `unit` as `Disassembler` has them. Raises `EncodingError` for an item that is no flit or 256-bit
    payload.
    """
    text = Disassembler(units, unit)
    return "".join(f"{text.line(item)}\n" for item in items)


# ---- text to payload ---------------------------------------------------------------------------------


def _number(cursor: Cursor) -> int:
    value = cursor.number(f"payload ({PAYLOAD_WIDTH} bits)", 0, PAYLOAD_MASK)
    cursor.finish()
    return value


def _instruction(cursor: Cursor) -> int:
    if cursor.next.kind == "number":
        return _number(cursor)
    start = cursor.name("an instruction")
    if start.text in _CLUSTER:
        return parse_fields(cursor, _CLUSTER[start.text], start)
    if start.text == "RUN":
        return parse_fields(cursor, vector.RUN, start)
    if start.text == "IMEM":
        addr = cursor.number("IMEM address (9 bits)", 0, vector.IMEM_WORDS - 1)
        cursor.expect(":")
        word = parse_word(cursor)
        if cursor.next.text == ",":
            raise cursor.error("an IMEM flit holds one word: give the immediate a line of its own (.imm)")
        return encoded(cursor, vector.IMEM, start, {"addr": addr, "word": word})
    if start.text == "DESC":
        return _descriptor(cursor, start)
    raise cursor.error(f"{start.text!r} is none of {', '.join(_CLUSTER)}, IMEM, DESC, RUN", start)


def _descriptor(cursor: Cursor, start: Token) -> int:
    token = cursor.name("a descriptor field such as A0.base")
    found = _DESC_TARGET.match(token.text)
    if not found:
        raise cursor.error(f"expected A0..A7 and .base, .peer or .dim0...dim3, got {token.text!r}", token)
    ad, part = int(found[1]), found[2]
    if part == "base":
        cursor.expect("=")
        base = parse_value(cursor, vector.DESC_BASE.fields["base"], f"{token.text}")
        cursor.finish()
        return encoded(cursor, vector.DESC_BASE, start, {"ad": ad, "base": base})
    if part == "peer":
        base = parse_fields(cursor, vector.PEER_RECORD, start)
        return encoded(cursor, vector.DESC_BASE, start, {"ad": ad, "base": base})
    return parse_fields(cursor, vector.DESC_DIM, start, ad=ad, field=vector.DescField[part.upper()])


def _signal(cursor: Cursor) -> int:
    start = cursor.next
    if start.text in SignalCode.__members__:
        cursor.take()
        return parse_fields(cursor, CU_SIGNAL, start, code=SignalCode[start.text])
    return parse_fields(cursor, CU_SIGNAL, start)


def _control(cursor: Cursor) -> int:
    start = cursor.name("READ, WRITE or REPLY")
    if start.text == ControlOp.REPLY.name:
        return parse_fields(cursor, CU_CTRL_REPLY, start)
    if start.text not in ControlOp.__members__:
        raise cursor.error(f"expected READ, WRITE or REPLY, got {start.text!r}", start)
    return parse_fields(cursor, CU_CTRL_REQUEST, start, op=ControlOp[start.text])


_TABLES = {
    FlitType.MEM_RD_REQ: MEM_REQ, FlitType.MEM_WR_REQ: MEM_WR, FlitType.MEM_WR_ACK: MEM_ACK, FlitType.CU_DATA: CU_DATA
}  # fmt: skip


def _payload(cursor: Cursor, kind: int) -> int:
    if cursor.next.kind == "number":
        return _number(cursor)
    if kind == FlitType.CU_INST:
        return _instruction(cursor)
    if kind == FlitType.CU_SIGNAL:
        return _signal(cursor)
    if kind == FlitType.CU_CTRL:
        return _control(cursor)
    if kind in _TABLES:
        return parse_fields(cursor, _TABLES[kind], cursor.next)
    raise cursor.error(f"expected the {PAYLOAD_WIDTH}-bit payload as a number, got {cursor.next.text!r}")


def _flit_type(text: str) -> int | None:
    if text in FlitType.__members__:
        return FlitType[text]
    found = re.match(r"TYPE_(1[0-5]|[0-9])$", text)
    return int(found[1]) if found else None


def _flit(cursor: Cursor, kind: int) -> Flit:
    cursor.take()
    src = cursor.node()
    cursor.expect("->")
    dst = cursor.node()
    values = {"txn": 0, "rsvd": 0, "last": 0}
    seen: set[str] = set()
    bar = False
    while not cursor.done:
        if bar := cursor.accept("|"):
            break
        token = cursor.name("txn=, rsvd=, last or |")
        if token.text not in values:
            raise cursor.error(f"a flit header has no {token.text!r}; it has txn, rsvd, last", token)
        if token.text in seen:
            raise cursor.error(f"{token.text} is given twice", token)
        seen.add(token.text)
        if token.text == "last":
            values["last"] = 1
        else:
            cursor.expect("=")
            width = 8 if token.text == "txn" else 3
            values[token.text] = cursor.number(f"{token.text} ({width} bits)", 0, (1 << width) - 1)
    if cursor.done:
        if kind != FlitType.MEM_WR_ACK:
            raise cursor.error("expected a payload" if bar else "expected '|' and a payload")
        return Flit(dst, src, kind, **values, payload=0)
    return Flit(dst, src, kind, **values, payload=_payload(cursor, kind))


def _lines(text: str) -> Iterable[Cursor]:
    for number, line in enumerate(text.splitlines(), 1):
        cursor = Cursor(line, number)
        if not cursor.done:
            yield cursor


def assemble(text: str) -> list[Flit | int]:
    """The flits, and as ints the lone payloads, that `text` spells, in order.

    Raises `AssemblyError` (line, column) for anything that does not parse, does not fit its field, or that
    an encoder rule forbids.
    """
    items: list[Flit | int] = []
    for cursor in _lines(text):
        kind = _flit_type(cursor.next.text)
        items.append(_instruction(cursor) if kind is None else _flit(cursor, kind))
    return items


def assemble_words(text: str) -> list[int]:
    """The 32-bit words of a vector kernel, an instruction a line; `VSETI s4, 0xbfb8aa` gives two words."""
    words: list[int] = []
    for cursor in _lines(text):
        words.append(parse_word(cursor))
        if cursor.accept(","):
            words.append(cursor.number("immediate (24 bits)", 0, (1 << 24) - 1))
        cursor.finish()
    return words


def disassemble_words(words: Iterable[int]) -> str:
    """The text of a vector kernel's words in program order; `assemble_words` gives the words back."""
    lines: list[str] = []
    immediate = False
    for word in words:
        if word < 0 or word >> vector.WORD_WIDTH:
            raise EncodingError(f"vector word: {word:#x} is wider than {vector.WORD_WIDTH} bits")
        if not immediate:
            lines.append(word_text(word))
            immediate = vector.decode_word(word).op is vector.Opcode.VSETI
            continue
        if _PLAIN_VSETI.match(lines[-1]) and vector.IMMEDIATE.accepts(word):
            lines[-1] += f", {word:#08x}"
        else:
            lines.append(immediate_text(word))
        immediate = False
    return "".join(f"{line}\n" for line in lines)
