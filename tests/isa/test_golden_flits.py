"""The published compiler's two instruction streams: every flit decodes, re-encodes, disassembles and assembles.

Each line of `golden/flits` carries the bits and the recorder's own reading of them, so that fields are also
compared with names and values this package did not produce.
"""

import re
from pathlib import Path

import pytest

from kohakutpu.isa import cluster, validate, vector
from kohakutpu.isa.assembler import assemble, disassemble
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import UnitType

FOLDER = Path(__file__).parents[1] / "data" / "golden" / "flits"
COUNTS = {"linear_silu_fused": 94, "linear_silu_staged": 107}
STREAMS = list(COUNTS)


def lines(stream: str) -> list[tuple[Flit, str]]:
    """Every flit of a stream with the recorder's comment."""
    out = []
    for line in (FOLDER / f"{stream}.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        bits, comment = line.split(" ; ", 1)
        *_, payload, word = bits.split()
        flit = Flit.from_int(int(word, 16))
        assert flit.payload == int(payload, 16)
        out.append((flit, comment))
    assert len(out) == COUNTS[stream]
    return out


def unit_of(comment: str) -> UnitType:
    return UnitType.CLUSTER if comment.split()[0] in ("FILL", "GEMM", "DRAIN") else UnitType.VECTOR


@pytest.mark.parametrize("stream", STREAMS)
def test_decode_and_encode(stream):
    for flit, comment in lines(stream):
        assert flit.type == FlitType.CU_INST and flit.rsvd == 0
        unit = unit_of(comment)
        validate.flit(flit, unit=unit)
        tables = cluster.LAYOUTS if unit == UnitType.CLUSTER else vector.ENVELOPES
        layout = tables[flit.payload >> 252]
        assert layout.encode(**layout.decode(flit.payload)) == flit.payload
        assert Flit.from_int(flit.to_int()) == flit


@pytest.mark.parametrize("stream", STREAMS)
def test_disassemble_and_assemble(stream):
    flits = [flit for flit, _ in lines(stream)]
    text = disassemble(flits)
    assert "| 0x" not in text and ".word" not in text
    assert assemble(text) == flits
    for flit, comment in lines(stream):
        assert disassemble([flit]) == disassemble([flit], unit=unit_of(comment))


@pytest.mark.parametrize("stream", STREAMS)
def test_kernels_are_legal(stream):
    image = {}
    payloads = [flit.payload for flit, comment in lines(stream) if unit_of(comment) == UnitType.VECTOR]
    validate.program(payloads, UnitType.VECTOR, image=image)
    assert len(image) > 30


def read_comment(comment: str) -> dict[str, int]:
    """The fields that a recorder's comment states, by this package's names."""
    if found := re.match(r"(FILL|GEMM|DRAIN)((?: \w+=\w+)*)$", comment):
        pairs = (pair.split("=") for pair in found[2].split())
        return {"op": cluster.Op[found[1]]} | {name: int(value, 0) for name, value in pairs}
    if found := re.match(r"RUN pc=(\d+)$", comment):
        return {"op": vector.Envelope.RUN, "pc": int(found[1])}
    if found := re.match(r"DESC A(\d)\.base = (\w+)$", comment):
        return {"op": vector.Envelope.DESC, "ad": int(found[1]), "field": 0, "value": int(found[2], 0)}
    if found := re.match(r"DESC A(\d)\.dim(\d) = stride (-?\d+) bound (\d+)$", comment):
        names = ("ad", "field", "stride", "bound")
        values = dict(zip(names, map(int, found.groups()), strict=True))
        return {"op": vector.Envelope.DESC} | values | {"field": values["field"] + 1}
    found = re.match(r"IMEM \[(\d+)\] (\w+)  ", comment)
    return {"op": vector.Envelope.IMEM, "addr": int(found[1]), "word": int(found[2], 16)}


SOURCES = {"v": 0, "s": 1, "c": 2, "k": 3}


def read_word(text: str) -> dict[str, int] | None:
    """The fields of a recorder's word, None for an immediate."""
    name, _, rest = text.partition(" ")
    if name == ".imm":
        return None
    values: dict[str, int] = {"op": vector.Opcode[name]}
    if found := re.match(r"v(\d+), A(\d)\+(\d+) dt(\d)$", rest):
        return values | dict(zip(("vd", "ad", "offset", "dtype"), map(int, found.groups()), strict=True))
    if found := re.match(r"A(\d) (?:<-|->) L1\[(\d+)\]$", rest):
        return values | {"ad": int(found[1]), "l1": int(found[2]), "peer": 0}
    if found := re.match(r"v(\d+), a=(\w)(\d+), b=(\w)(\d+), c=(\w)(\d+)$", rest):
        vd, *sources = found.groups()
        for slot, letter, index in zip("abc", sources[::2], sources[1::2], strict=True):
            values |= {f"s{slot}": SOURCES[letter], f"v{slot}": int(index)}
        return values | {"vd": int(vd), "pm": 0}
    if name == "VSETI":
        return values | {"vd": int(rest[1:]), "sa": 0}
    if name == "VSETVL":
        return values | {"va": int(rest[1:])}
    if name == "VSETMODE":
        return values | {"mode": vector.Mode[rest]}
    assert not rest, text
    return values


@pytest.mark.parametrize("stream", STREAMS)
def test_fields_are_what_the_recorder_read(stream):
    words = 0
    for flit, comment in lines(stream):
        decode = cluster.decode if unit_of(comment) == UnitType.CLUSTER else vector.decode
        decoded, expected = decode(flit.payload), read_comment(comment)
        assert {name: getattr(decoded, name) for name in expected} == expected, comment
        if unit_of(comment) == UnitType.CLUSTER:
            rest = {k: v for k, v in decoded._asdict().items() if k not in expected}
            assert not any(rest.values()), comment
        elif expected["op"] == vector.Envelope.IMEM:
            fields = read_word(comment.split("  ", 1)[1])
            if fields is not None:
                word = vector.decode_word(decoded.word)
                assert {name: getattr(word, name) for name in fields} == fields, comment
                words += 1
    assert words > 60
