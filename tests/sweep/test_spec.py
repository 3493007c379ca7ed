"""Descriptions of sweeps: the points that they give, and what they may not say."""

import pytest

from kohakutpu.lang.source import KernelError
from kohakutpu.machine import MachineError
from kohakutpu.sweep.spec import SpecError, read

SILU = """
name: silu
kernel: kohakutpu.kernels:linear_silu
machines: [mm_mesh, quad]
extents: {M: [32, 64], K: [64], N: [32]}
knobs: {gm: [4, 8], fuse: [true, false]}
seeds: {first: 3, last: 5}
"""
KERNEL = """
from kohakutpu import lang as L
from kohakutpu.lang import kernel

@kernel
def twice(a=L.In(...), b=L.Out(...), *, s=2.0):
    b <<= a * s
"""


@pytest.fixture
def spec(tmp_path):
    def write(text):
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        return path

    return write


def test_the_points_are_the_product(spec):
    points = read(spec(SILU)).points
    assert len(points) == 2 * 2 * 4 * 3 == len({point.key for point in points})
    assert [point.seed for point in points[:3]] == [3, 4, 5]
    assert points[0].shapes == (("x", (32, 64)), ("w", (32, 64))) and points[0].machine == "mm_mesh"
    assert {point.knobs for point in points} == {
        (("gm", gm), ("fuse", fuse)) for gm in (4, 8) for fuse in (True, False)
    }
    assert not read(spec(SILU)).gates and read(spec(SILU + "engines: [rtl]\n")).gates


def test_shapes_are_listed_or_made_of_extents(spec):
    listed = SILU.replace(
        "extents: {M: [32, 64], K: [64], N: [32]}", "shapes: [{x: [32, 64], w: [32, 64]}, {x: [64, 64], w: [32, 64]}]"
    )
    assert read(spec(listed)).points == read(spec(SILU)).points


def test_a_kernel_in_a_file_stands_beside_the_description(spec, tmp_path):
    (tmp_path / "mine.py").write_text(KERNEL)
    text = "name: mine\nkernel: mine.py:twice\nmachines: [mm_mesh]\nshapes: [{a: [16]}, {a: [4, 8]}]\nknobs: {s: [0.5, 2]}\n"
    points = read(spec(text)).points
    assert len(points) == 4 and points[0].kernel == "mine.py:twice" and points[0].kernel_text == KERNEL
    assert [dict(point.knobs)["s"] for point in points[:2]] == [0.5, 2]


def test_what_makes_another_result_makes_another_point(spec, tmp_path):
    keys = set()
    (tmp_path / "mine.py").write_text(KERNEL)
    text = "name: mine\nkernel: mine.py:twice\nmachines: [mm_mesh]\nshapes: [{a: [16]}]\n"
    for change in (
        "", "seeds: [1]\n", "knobs: {s: [0.5]}\n", "timeout: 9\n", "constants: arrays\n", "faults: [vector-alu-sign]\n",
    ):  # fmt: skip
        keys.add(read(spec(text + change)).points[0].key)
    keys.add(read(spec(text), code=lambda gates: "another program").points[0].key)
    (tmp_path / "mine.py").write_text(KERNEL.replace("a * s", "a + s"))
    keys.add(read(spec(text)).points[0].key)
    assert len(keys) == 8


@pytest.mark.parametrize(
    "old, new, reason",
    [
        ("seeds:", "seed:", "7:1: unknown key 'seed' in the sweep; did you mean seeds"),
        ("gm: [4, 8]", "gn2: [4, 8]", "6:9: unknown key 'gn2' in knobs of linear_silu; did you mean gn"),
        ("gm: [4, 8]", "gm: [4, 4]", "6:17: knob gm names 4 twice"),
        ("gm: [4, 8]", "gm: []", "6:13: knob gm is an empty list"),
        ("gm: [4, 8]", "gm: 4", "knob gm is a list, not '4'"),
        ("gm: [4, 8]", "gm: [010]", "a leading 0 as octal|YAML reads '010' as a number"),
        ("fuse: [true, false]", "fuse: [yes]", "YAML reads 'yes' as a boolean"),
        ("K: [64], ", "", "no values for K of linear_silu"),
        ("K: [64]", "K: [0]", "extent K has 0; 1 to"),
        ("K: [64]", "K: [1e3]", "a plain decimal integer, not '1e3'"),
        ("K: [64]", "K: [64], J: [1]", "unknown key 'J' in extents of linear_silu"),
        ("M: [32, 64]", "M: [1000000]", "an operand has at most"),
        ("{first: 3, last: 5}", "{first: 5, last: 3}", "seeds 5 to 3"),
        ("{first: 3, last: 5}", "[-1]", "a seed is not negative"),
        ("{first: 3, last: 5}", "{first: 0, last: 99999}", "1,600,000 points; a sweep has at most 100,000"),
        ("name: silu", "name: silu/2", "name 'silu/2': letters"),
        ("name: silu", "", "the sweep has no name"),
        ("machines: [mm_mesh, quad]", "machines: [mm_mesh, mm_mesh]", "machines names mm_mesh twice"),
        ("seeds: {", "engines: [gates]\nseeds: {", "engines has 'gates'; there are model, rtl"),
        ("seeds: {", "engines: [rtl]\nfaults: [vector-alu-sign]\nseeds: {", "they do not go with the engine rtl"),
        ("seeds: {", "faults: [vector-alu-sine]\nseeds: {", "faults has 'vector-alu-sine'"),
        ("seeds: {", "timeout: 0\nseeds: {", "timeout is at least one cycle"),
        ("seeds: {", "simulator: icaros\nseeds: {", "simulator is verilator or icarus, not 'icaros'"),
        ("seeds: {", "shapes: [{x: [32, 64], w: [32, 64]}]\nseeds: {", "either shapes or extents"),
        ("name: silu", "name: silu\nname: silu", "duplicate key 'name'"),
        ("name: silu", "---\nname: silu\n---\n", "a file describes one sweep"),
    ],
)  # fmt: skip
def test_what_is_refused(spec, old, new, reason):
    assert old in SILU
    with pytest.raises(SpecError, match=reason):
        read(spec(SILU.replace(old, new)))


@pytest.mark.parametrize(
    "old, new, kind, reason",
    [
        ("linear_silu", "linear_silo", KernelError, "has no linear_silo; its kernels are"),
        ("quad", "quod", SpecError, "did you mean quad"),
        ("quad", "seed_case", SpecError, "compile-only"),
    ],
)
def test_kernels_and_machines_are_refused_by_those_who_know_them(spec, old, new, kind, reason):
    with pytest.raises(kind, match=reason):
        read(spec(SILU.replace(old, new)))


def test_shapes_that_the_kernel_refuses(spec):
    with pytest.raises(KernelError, match="K is 64 for one operand and 32"):
        read(spec(SILU.replace("extents: {M: [32, 64], K: [64], N: [32]}", "shapes: [{x: [32, 64], w: [32, 32]}]")))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(SpecError, match="cannot read the sweep .*No such file"):
        read(tmp_path / "none.yaml")


def test_machine_errors_are_the_readers_own():
    assert not issubclass(SpecError, MachineError)
