"""The published instruction streams, bit for bit, and what the default lowering makes of the same kernel."""

import re
from pathlib import Path

import pytest

from kohakutpu.compiler import Options, cluster_published, compile_kernel, fusion
from kohakutpu.conformance import flits
from kohakutpu.kernels.linear import linear_bias, linear_silu
from kohakutpu.machine import load

SHAPES = {"x": (32, 64), "w": (32, 64)}
KNOBS = {"gm": 4, "gn": 8, "nk": 2}
FILES = {"linear_silu_fused.txt": (94, 12, 3), "linear_silu_staged.txt": (107, 8, 6)}


@pytest.fixture(scope="module")
def machine():
    return load("seed_case")


@pytest.mark.parametrize("name", FILES)
def test_recorded_streams_are_equal(golden, name):
    tallies = flits.check_flits(golden / "flits" / name)
    assert [tally.first for tally in tallies if not tally.ok] == []
    assert tuple(tally.compared for tally in tallies) == FILES[name]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "pattern, replacement, unit",
    [
        (r"^(0 1,1 +2 20+)4", r"\g<1>5", "flits"),  # one bit of a GEMM payload
        (r"^(1 1,0 +\d+ [0-9a-f]{64} )00005400", r"\g<1>00005500", "flits"),  # another txn in a header
        (r"'await', 1, 1, 4", "'await', 1, 1, 5", "steps"),
        (r"w=entry:8x2", "w=entry:8x1", "buffers"),
    ],
)
def test_a_changed_recording_is_seen(golden, tmp_path, name, pattern, replacement, unit):
    text, count = re.subn(pattern, replacement, (golden / "flits" / name).read_text(), count=1, flags=re.MULTILINE)
    assert count == 1
    changed = tmp_path / name
    changed.write_text(text)
    assert [tally.unit for tally in flits.check_flits(changed) if not tally.ok] == [unit]


def test_a_recording_without_a_header_is_refused(tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("# FUSED\n")
    with pytest.raises(ValueError, match="no 'machine' in the header"):
        flits.read(path)


def _wrong_place(self, side, operand, step, entries, source):
    return step % 2, 1  # one entry further than the operand's region


def _wrong_span(gm, gn):
    return gm * gn + 8


@pytest.mark.parametrize(
    "owner, name, wrong",
    [(cluster_published._L1, "place", _wrong_place), (fusion, "span_words", _wrong_span)],
    ids=["eoff", "span"],
)
def test_a_planted_fault_is_seen(golden, monkeypatch, owner, name, wrong):
    monkeypatch.setattr(owner, name, wrong)
    assert not flits.check_flits(golden / "flits" / "linear_silu_fused.txt")[0].ok


@pytest.mark.parametrize(
    "fuse, options, kinds",
    [
        (True, Options("published"), {"FILL": 4, "GEMM": 2, "DRAIN": 2, "IMEM": 72, "DESC": 12, "RUN": 2}),
        (False, Options("published", "arrays"), {"FILL": 4, "GEMM": 2, "DRAIN": 2, "IMEM": 82, "DESC": 16, "RUN": 1}),
        (True, Options(), {"FILL": 4, "GEMM": 2, "DRAIN": 2, "IMEM": 46, "DESC": 10, "RUN": 6}),
        (False, Options(), {"FILL": 4, "GEMM": 2, "DRAIN": 2, "IMEM": 38, "DESC": 8, "RUN": 2}),
    ],
    ids=["published fused 94", "published staged 107", "default fused 70", "default staged 56"],
)
def test_counts_of_the_measured_case(machine, request, fuse, options, kinds):
    artifact = compile_kernel(linear_silu, machine, SHAPES, {**KNOBS, "fuse": fuse}, options)
    assert artifact.kinds() == kinds
    assert artifact.flit_count == sum(kinds.values()) == int(request.node.callspec.id.split()[-1])


def test_memory_of_the_measured_case(machine):
    """No temp and no constant fused; staged one temp of 2,048 bytes, and as published two arrays of 16,384."""
    fused = compile_kernel(linear_silu, machine, SHAPES, KNOBS)
    assert {image.role for image in fused.buffers} == {"in", "out"}
    staged = compile_kernel(linear_silu, machine, SHAPES, {**KNOBS, "fuse": False}, Options("published", "arrays"))
    extra = {image.name: image.bytes for image in staged.buffers if image.role in ("temp", "constant")}
    assert extra == {"land3": 2048, "const-1.4426950408889634": 16384, "const1.0": 16384}
    ours = compile_kernel(linear_silu, machine, SHAPES, {**KNOBS, "fuse": False})
    assert {image.name: image.bytes for image in ours.buffers if image.role in ("temp", "constant")} == {"land3": 2048}


def test_published_per_channel_operand(machine):
    """spec: 36 vector flits at 4x8 (24 IMEM, 11 DESC, 1 RUN)."""
    shapes = {"x": (16, 64), "w": (32, 64), "b": (32,)}
    kinds = compile_kernel(linear_bias, machine, shapes, KNOBS, Options("published")).kinds()
    assert (kinds["IMEM"], kinds["DESC"], kinds["RUN"]) == (24, 11, 1)


def test_the_listing_assembles_to_the_flits(machine):
    from kohakutpu.isa.assembler import assemble
    from kohakutpu.isa.flit import xy

    artifact = compile_kernel(linear_silu, machine, SHAPES, KNOBS)
    listed = list(assemble(artifact.flit_listing()))
    staged = [
        flit._replace(dst=kick.node)
        for round_ in artifact.rounds for kick in round_.kicks
        for flit in round_.flits[kick.base : kick.base + kick.count]
    ]  # fmt: skip
    assert listed == staged and xy(listed[0].dst) == (1, 1)


def test_the_shipped_recordings_are_the_full_ones(golden):
    sampled = Path(__file__).resolve().parents[1] / "data" / "golden" / "flits"
    for name in FILES:
        assert (sampled / name).read_bytes() == (golden / "flits" / name).read_bytes()
