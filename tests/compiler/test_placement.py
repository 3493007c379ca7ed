"""Where buffers stand."""

import pytest

from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.kernels.linear import matmul
from kohakutpu.machine import Dram

from .conftest import build_machine
import itertools

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
