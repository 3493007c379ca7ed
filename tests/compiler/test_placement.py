"""Where buffers stand."""

import itertools

import pytest

from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.kernels.linear import matmul
from kohakutpu.machine import Dram

from .conftest import build_machine
from .kernels import relu_and_half

SHAPES = {"a": (33, 70), "b": (20, 70)}


def placed(machine, **options):
    return compile_kernel(matmul, machine, SHAPES, {"gm": 2, "gn": 2, "nk": 1}, Options(**options)).buffers


def test_pages_in_order_without_overlap(bench):
    images = placed(bench)
    assert [image.name for image in images] == ["a", "b", "c"]
    end = 0
    for image in images:
        assert image.address == end
        end = -(-(image.address + image.bytes) // 2048) * 2048


def test_given_addresses_and_what_is_placed_around_them(bench):
    images = {image.name: image for image in placed(bench, addresses={"b": 0x1000})}
    assert images["b"].address == 0x1000
    spans = sorted((image.address, image.address + image.bytes) for image in images.values())
    assert all(end <= first for (_, end), (first, _) in itertools.pairwise(spans))


@pytest.mark.parametrize(
    "addresses, reason",
    [
        ({"d": 0}, "no buffer 'd'; there are a, b, c"),
        ({"a": 0x80}, "a at 128; a multiple of 256 is expected"),
        ({"c": 16}, "c at 16; a multiple of 32 is expected"),
        ({"a": -256}, "a multiple of 256 is expected"),
        ({"a": True}, "a multiple of 256 is expected"),
        ({"a": 1 << 28}, "a at 0x10000000 ends past the memory of 268435456 bytes"),
        ({"a": 0x1000, "b": 0x1800}, "b at 0x1800 overlaps a at 0x1000"),
        ({"a": 0x1000, "b": 0x800}, "b at 0x800 overlaps a"),
    ],
)
def test_bad_addresses_are_refused(bench, addresses, reason):
    with pytest.raises(CompileError, match=reason):
        placed(bench, addresses=addresses)


def test_overlap_when_asked(bench):
    images = placed(bench, addresses={"a": 0x1000, "b": 0x1800}, allow_overlap=True)
    assert [image.address for image in images][:2] == [0x1000, 0x1800]


def test_a_memory_that_is_too_small():
    small = build_machine(memory=Dram(bytes=64 << 10))
    with pytest.raises(
        CompileError, match=r"c \(65536 bytes\) does not fit: .* take 114688 bytes of pages and the memory"
    ):
        compile_kernel(matmul, small, {"a": (256, 64), "b": (128, 64)}, {"gm": 8, "gn": 16})


def test_a_memory_that_is_just_large_enough():
    machine = build_machine(memory=Dram(bytes=64 << 10))
    artifact = compile_kernel(matmul, machine, {"a": (128, 128), "b": (64, 128)}, {"gm": 8, "gn": 8})
    assert sum(image.bytes for image in artifact.buffers) == 64 << 10


@pytest.mark.parametrize("options", [{"lowering": "fast"}, {"constants": "memory"}])
def test_unknown_options(options):
    with pytest.raises(CompileError, match=r"is none of (default, published|registers, arrays)"):
        Options(**options)


# ---- what is written past a buffer's end ------------------------------------------------------------------


END = 1 << 28
ODD = {"x": (1040,)}  # 2080 bytes: a run of 8 chunks and one word


def two_results(machine, lowering, addresses):
    return compile_kernel(relu_and_half, machine, ODD, {"part": 2048}, Options(lowering, addresses=addresses))


@pytest.mark.parametrize("order", [("x", "y"), ("y", "x")])
def test_what_published_runs_write_past_the_end_overlaps_in_either_order(bench, order):
    addresses = {name: {"x": 2080, "y": 0}[name] for name in order}
    assert two_results(bench, "default", addresses).buffer("x").address == 2080
    with pytest.raises(CompileError, match=r"addresses: [xy] at .* overlaps [xy] at"):
        two_results(bench, "published", addresses)


@pytest.mark.parametrize("name", ["x", "y"])
def test_published_runs_stay_inside_the_memory(bench, name):
    assert two_results(bench, "default", {name: END - 2080}).buffer(name).address == END - 2080
    with pytest.raises(CompileError, match=rf"{name} at 0xffff7e0 ends past .*: its 2080 bytes .* whole runs, 4096 bytes"):
        two_results(bench, "published", {name: END - 2080})
    assert two_results(bench, "published", {name: END - 4096}).buffer(name).address == END - 4096


def test_a_page_more_than_the_memory_is_refused():
    """Two pages of buffers, then one word more: the memory is counted to the page."""
    machine = build_machine(memory=Dram(bytes=64 << 10))
    compile_kernel(relu_and_half, machine, {"x": (10 * 1024,)})
    with pytest.raises(CompileError, match=r"z \(20512 bytes\) does not fit: .* take 67584 bytes of pages"):
        compile_kernel(relu_and_half, machine, {"x": (10 * 1024 + 16,)})
