"""Round trips over every layout, and what random bits do: nothing crashes, and nothing is accepted that does
not re-encode to itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohakutpu.isa import cluster, memory, registers, signals, validate, vector
from kohakutpu.isa.assembler import assemble, assemble_words, disassemble, disassemble_words
from kohakutpu.isa.fields import EncodingError, Layout
from kohakutpu.isa.flit import HEADER, Flit, FlitType
from kohakutpu.isa.signals import ControlOp, UnitType

DECODES = 100_000


def _layouts(module) -> list[Layout]:
    return [value for value in vars(module).values() if isinstance(value, Layout)]


WORDS = [*vector.LAYOUTS.values(), vector.VDRAIN_PEER]
INSTRUCTIONS = [
    *((layout, UnitType.CLUSTER) for layout in cluster.LAYOUTS.values()),
    *(
        (layout, UnitType.VECTOR)
        for layout in (vector.IMEM, vector.DESC, vector.DESC_BASE, vector.DESC_DIM, vector.RUN)
    ),
]
FLIT_PAYLOADS = [
    (FlitType.MEM_RD_REQ, memory.MEM_REQ), (FlitType.MEM_WR_REQ, memory.MEM_WR),
    (FlitType.MEM_RD_RESP, memory.MEM_DATA),
    (FlitType.MEM_WR_ACK, memory.MEM_ACK), (FlitType.MEM_WR_DATA, memory.MEM_DATA),
    (FlitType.CU_SIGNAL, signals.CU_SIGNAL), (FlitType.CU_CTRL, signals.CU_CTRL_REQUEST),
    (FlitType.CU_CTRL, signals.CU_CTRL_REPLY), (FlitType.CU_DATA, signals.CU_DATA), (FlitType.CU_DATA, memory.MEM_DATA),
    *((FlitType.CU_INST, layout) for layout, _ in INSTRUCTIONS),
]  # fmt: skip
EVERY_LAYOUT = {
    layout.name: layout
    for layout in [
        HEADER, *WORDS, vector.IMMEDIATE, *(layout for layout, _ in INSTRUCTIONS), vector.PEER_RECORD,
        *_layouts(cluster), *_layouts(memory), *_layouts(signals), *(r.layout for r in registers.REGISTERS),
        *registers.AUX.values(),
    ]
}  # fmt: skip


def accepted(layout: Layout):
    """Words of `layout` with every field anywhere in its legal range."""
    fields = {}
    for name, item in layout.fields.items():
        if item.fixed:
            fields[name] = st.just(item.default)
        elif item.enum is not None and not item.open:
            fields[name] = st.sampled_from([int(member) for member in item.enum])
        else:
            fields[name] = st.just(item.default) | st.integers(item.least, item.greatest)
    return st.fixed_dictionaries(fields).map(lambda v: layout.pack(**v)).filter(layout.accepts)


@pytest.mark.parametrize("layout", EVERY_LAYOUT.values(), ids=list(EVERY_LAYOUT))
def test_every_layout_round_trips(layout):
    @settings(max_examples=40, deadline=None)
    @given(accepted(layout))
    def holds(word):
        values = layout.decode(word)
        assert layout.encode(**values) == word
        assert {name: layout.get(word, name) for name in layout.fields} == values

    holds()


@pytest.mark.parametrize("layout", WORDS, ids=lambda layout: layout.name)
def test_every_vector_word_round_trips_through_text(layout):
    @settings(max_examples=40, deadline=None)
    @given(accepted(layout))
    def holds(word):
        vector.check_word(word)
        text = disassemble_words([word])
        assert ".word" not in text
        assert assemble_words(text) == [word]
        fields = vector.decode_word(word)._asdict()
        assert vector.encode(**{name: fields[name] for name in layout.fields}) == word

    holds()


@pytest.mark.parametrize(("kind", "layout"), FLIT_PAYLOADS, ids=lambda value: getattr(value, "name", None))
def test_every_flit_round_trips_through_text(kind, layout):
    byte = st.integers(0, 255)
    header = st.tuples(byte, byte, st.just(kind), byte, st.integers(0, 1), st.integers(0, 7))

    @settings(max_examples=40, deadline=None)
    @given(header, accepted(layout))
    def holds(head, payload):
        flit = Flit(*head, payload=payload)
        assert Flit.from_int(flit.to_int()) == flit
        assert assemble(disassemble([flit])) == [flit]

    holds()


@pytest.mark.parametrize(("layout", "unit"), INSTRUCTIONS, ids=lambda value: getattr(value, "name", None))
def test_every_instruction_is_legal_and_named(layout, unit):
    @settings(max_examples=40, deadline=None)
    @given(accepted(layout))
    def holds(payload):
        validate.instruction(payload, unit)
        text = disassemble([payload], unit=unit)
        assert text.startswith(layout.name.split()[0])
        assert assemble(text) == [payload]

    holds()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, (1 << 288) - 1), max_size=6))
def test_any_flits_round_trip_through_text(words):
    flits = [Flit.from_int(word) for word in words]
    assert [flit.to_int() for flit in flits] == words
    assert assemble(disassemble(flits)) == flits


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=12))
def test_any_words_round_trip_through_text(words):
    assert assemble_words(disassemble_words(words)) == words


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="VFILDRAGENM ()->|=:,.+x0123456789avskcp#\n", max_size=60) | st.text(max_size=40))
def test_any_text_assembles_or_is_refused(text):
    for read in (assemble, assemble_words):
        try:
            read(text)
        except EncodingError as wrong:
            assert str(wrong).startswith("line ")


# ---- random bits ---------------------------------------------------------------------------------------


def _random_words(seed: int, width: int, shape: list[int]) -> list[int]:
    """DECODES words of `width` bits; each is all random bits, or random bits under one of the masks `shape`, so
    that some are legal, or such a word with one bit flipped."""
    rng = np.random.default_rng(seed)
    raw = rng.bytes(DECODES * width // 8)
    step = width // 8
    words = [int.from_bytes(raw[i : i + step], "little") for i in range(0, len(raw), step)]
    masks, flips, kinds = (
        rng.integers(len(shape), size=DECODES),
        rng.integers(width, size=DECODES),
        rng.integers(4, size=DECODES),
    )
    out = []
    for word, mask, flip, kind in zip(words, masks.tolist(), flips.tolist(), kinds.tolist(), strict=True):
        if kind:
            word &= shape[mask]
        if kind == 3:
            word ^= 1 << flip
        out.append(word)
    return out


def _owned(layout: Layout) -> int:
    return ((1 << layout.width) - 1) & ~layout.reserved


def _legal(check, word, **options) -> bool:
    try:
        check(word, **options)
    except EncodingError:
        return False
    return True


def test_random_vector_words():
    legal = 0
    for word in _random_words(1, 32, [_owned(layout) for layout in WORDS]):
        decoded = vector.decode_word(word)
        layout = vector.layout_of(word)
        assert decoded.op == word >> 27
        if _legal(vector.check_word, word):
            legal += 1
            assert layout.encode(**layout.decode(word)) == word
        else:
            assert word & layout.reserved or not _same(layout, word)
    assert DECODES // 10 < legal < DECODES * 9 // 10


def _same(layout: Layout, word: int) -> bool:
    try:
        return layout.encode(**layout.decode(word)) == word
    except EncodingError:
        return False


@pytest.mark.parametrize("unit", [UnitType.CLUSTER, UnitType.VECTOR], ids=lambda unit: unit.name)
def test_random_instructions(unit):
    tables = cluster.LAYOUTS if unit == UnitType.CLUSTER else vector.ENVELOPES
    decode = cluster.decode if unit == UnitType.CLUSTER else vector.decode
    opcode = 3 << 252
    legal = 0
    # The opcode's upper half is masked away in the shaped words: 4 of 16 values, three of them legal.
    for payload in _random_words(2, 256, [_owned(layout) & ~(15 << 252) | opcode for layout in tables.values()]):
        decoded = decode.__wrapped__(payload)  # without the cache, which 100,000 payloads would only fill
        if _legal(validate.instruction, payload, unit=unit):
            legal += 1
            layout = tables[decoded.op]
            assert layout.encode(**layout.decode(payload)) == payload
        else:
            assert decoded.op not in tables or not _same(tables[decoded.op], payload)
    assert legal > DECODES // 50


def _payload_layout(flit: Flit) -> Layout | None:
    if flit.type == FlitType.CU_CTRL:
        reply = signals.CU_CTRL_REPLY.get(flit.payload, "op") == ControlOp.REPLY
        return signals.CU_CTRL_REPLY if reply else signals.CU_CTRL_REQUEST
    return {
        FlitType.MEM_RD_REQ: memory.MEM_REQ, FlitType.MEM_WR_REQ: memory.MEM_WR, FlitType.MEM_WR_ACK: memory.MEM_ACK,
        FlitType.CU_SIGNAL: signals.CU_SIGNAL, FlitType.CU_DATA: signals.CU_DATA,
    }.get(flit.type)  # fmt: skip


def test_random_flits():
    header = ((1 << 32) - 1) << 256 & ~(7 << 256)
    shapes = [header | _owned(layout) for layout in (memory.MEM_REQ, memory.MEM_WR, signals.CU_SIGNAL, signals.CU_DATA)]
    shapes += [header | _owned(signals.CU_CTRL_REQUEST) & ~(0xFC << 248), header]
    legal = dict.fromkeys(FlitType, 0)
    for word in _random_words(3, 288, shapes):
        flit = Flit.from_int(word)
        assert flit.to_int() == word
        if _legal(validate.flit, flit, descriptor=True):
            legal[FlitType(flit.type)] += 1
            layout = _payload_layout(flit)
            if layout is not None:
                assert layout.encode(**layout.decode(flit.payload)) == flit.payload
            HEADER.check(word)
    assert all(count > 20 for count in legal.values()), legal
