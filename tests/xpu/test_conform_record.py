"""Recording launches (spec/xpu.md 3.1): what is written, what is skipped, and what is refused when read back."""

import json

import numpy as np
import pytest

from kohakutpu.reference.xpu import ReferenceBackEnd
from kohakutpu.xpu import (
    Function, KernelBuffer, KernelStream, Undefined, XpuError, bf16, device, f16, f32, f64, i8, i16, i32, i64, kernel,
    thread, u8, u16, u32, u64,
)  # fmt: skip
from kohakutpu.xpu.launch import Geometry, Runtime
from kohakutpu.xpu.recording import RecordingError, digest, read, scalar_bytes


@kernel
def add(out: KernelBuffer[i32], a: KernelBuffer[i32], b: i32):
    out[thread.x()] = a[thread.x()] + b


@device
def twice(a: i32) -> i32:
    return a * 2


@device
def negated(a: i32) -> i32:
    return -a


@kernel
def applied(out: KernelBuffer[i32], how: Function[twice, negated]):
    out[0] = how(out[0])


class Device(ReferenceBackEnd):
    name = "cpu"

    def geometry(self):
        return Geometry(wave_size=8)


def stream():
    runtime = Runtime()
    runtime.register(Device())
    return KernelStream(runtime)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where launches are recorded."""
    monkeypatch.setenv("XPU_RECORD", str(tmp_path / "corpus"))
    return tmp_path / "corpus"


def numbers(count=8):
    return KernelBuffer.of(i32, np.arange(count, dtype=np.int32))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_recording_holds_the_launch_and_every_allocation_before_and_after(folder):
    out, a = KernelBuffer(i32, 4), numbers()
    add.launch(stream(), grid=1, block=4)(out, a, -2)
    assert names(folder) == ["add.1"]
    assert names(folder / "add.1") == ["a0.in", "a0.out", "a1.in", "a1.out", "launch.json"]
    found = json.loads((folder / "add.1/launch.json").read_text())
    assert found["kernel"] == "add" and found["backend"] == "cpu" and found["waveWidth"] == 8
    assert found["grid"] == [1, 1, 1] and found["block"] == [4, 1, 1] and found["sharedBytes"] == 0
    assert [entry["bytes"] for entry in found["allocs"]] == [16, 32]
    assert found["args"] == [
        {"kind": "buffer", "alloc": 0, "offset": 0}, {"kind": "buffer", "alloc": 1, "offset": 0},
        {"kind": "scalar", "hex": "feffffff"},
    ]  # fmt: skip
    assert (folder / "add.1/a0.in").read_bytes() == b"\xff" * 16  # fresh memory is poisoned
    assert (folder / "add.1/a0.out").read_bytes() == np.arange(-2, 2, dtype=np.int32).tobytes()
    assert (folder / "add.1/a1.out").read_bytes() == (folder / "add.1/a1.in").read_bytes()
    assert read(folder / "add.1").source == digest(add.program)


def test_an_allocation_is_written_once_from_its_lowest_byte(folder):
    slab = numbers(10)
    add.launch(stream(), grid=1, block=2)(slab.slice(6, 2), slab.slice(2, 4), 1)
    found = read(folder / "add.1")
    assert [argument.get("offset") for argument in found.arguments] == [16, 0, None]
    assert found.before == (np.arange(2, 10, dtype=np.int32).tobytes(),)
    assert np.frombuffer(found.after[0], np.int32).tolist() == [2, 3, 4, 5, 3, 4, 8, 9]


def test_two_launches_of_a_kernel_are_recorded_unless_told_otherwise(folder, monkeypatch):
    order = stream()
    for _ in range(3):
        add.launch(order, grid=1, block=1)(numbers(), numbers(), 0)
    assert names(folder) == ["add.1", "add.2"]
    monkeypatch.setenv("XPU_RECORD_PER_KERNEL", "3")  # what the directory holds already counts
    for _ in range(2):
        add.launch(order, grid=1, block=1)(numbers(), numbers(), 0)
    assert names(folder) == ["add.1", "add.2", "add.3"]
    for wrong in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("XPU_RECORD_PER_KERNEL", wrong)
        with pytest.raises(XpuError, match=f"XPU_RECORD_PER_KERNEL={wrong}: a positive integer is expected"):
            add.launch(order, grid=1, block=1)(numbers(), numbers(), 0)


def test_a_skipped_launch_is_named_with_its_reason_and_spends_no_quota(folder, monkeypatch):
    monkeypatch.setenv("XPU_RECORD_MAX_BYTES", "64")
    order = stream()
    for _ in range(3):
        add.launch(order, grid=1, block=1)(numbers(8), numbers(9), 0)
    add.launch(order, grid=1, block=1)(numbers(8), np.zeros(4, np.int32), 0)
    assert (folder / "skipped.tsv").read_text().splitlines() == [
        *["add\t68 bytes of allocations, XPU_RECORD_MAX_BYTES allows 64"] * 3,
        "add\ta buffer outside every known allocation",
    ]
    for _ in range(2):
        add.launch(order, grid=1, block=1)(numbers(8), numbers(8), 0)
    assert names(folder) == ["add.1", "add.2", "skipped.tsv"]


def test_a_launch_with_too_many_arguments_is_skipped(folder):
    from kohakutpu import xpu

    parameters = ", ".join(f"a{n}: i32" for n in range(64))
    wide = xpu.define(f"@kernel\ndef wide(out: KernelBuffer[i32], {parameters}):\n    out[0] = a63\n",
                      {"kernel": kernel, "KernelBuffer": KernelBuffer, "i32": i32})["wide"]  # fmt: skip
    wide.launch(stream(), grid=1)(numbers(1), *range(64))
    assert (folder / "skipped.tsv").read_text() == "wide\t65 arguments, 64 at most\n"


def test_a_launch_that_raises_leaves_nothing(folder):
    with pytest.raises(Undefined):
        add.launch(stream(), grid=1, block=9)(numbers(8), numbers(9), 0)
    assert names(folder) == []


def test_odd_characters_of_a_name_become_underscores(folder):
    @kernel
    def größe(out: KernelBuffer[i32]):
        out[0] = 1

    größe.launch(stream(), grid=1)(numbers())
    assert names(folder) == ["gr__e.1"]
    assert read(folder / "gr__e.1").kernel == "größe"


def test_a_function_value_is_recorded_by_its_tag(folder):
    for how in (negated, 0):
        applied.launch(stream(), grid=1)(numbers(), how)
    assert [read(folder / f"applied.{n}").arguments[1]["hex"] for n in (1, 2)] == ["01000000", "00000000"]


@pytest.mark.parametrize(
    "kind, value, data",
    [(i8, -1, "ff"), (u8, 200, "c8"), (i16, -2, "feff"), (u16, 1, "0100"), (i32, 1 << 20, "00001000"),
     (u32, 0xFFFF_FFFF, "ffffffff"), (i64, -1, "ff" * 8), (u64, 1, "0100000000000000"), (f32, 1.5, "0000c03f"),
     (f64, 1.5, "000000000000f83f"), (f16, 1.5, "003e"), (f16, 65520.0, "007c"), (f32, 1e300, "0000807f"),
     (bf16, 1.5, "c03f"), (bf16, 1.00390625, "803f"), (bf16, 1.01171875, "823f"), (bf16, float("nan"), "c07f")],
)  # fmt: skip
def test_a_scalar_is_recorded_in_memory_order_at_its_width(kind, value, data):
    assert scalar_bytes(kind, value).hex() == data


def test_the_digest_says_what_a_kernel_says():
    from kohakutpu import xpu

    words = {word: getattr(xpu, word) for word in xpu.__all__}

    def of(body, before=""):
        return digest(
            xpu.define(f"{before}@kernel\ndef k(out: KernelBuffer[i32], n: i32):\n    {body}\n", dict(words))[
                "k"
            ].program
        )

    assert of("a = n + 1\n    out[0] = a") == of("b = n + 1\n    out[0] = b", "\n\n")
    assert len({of("out[0] = n + 1"), of("out[0] = n - 1"), of("out[0] = n + 2"), of("out[n] = n + 1"),
                of("out[0] = 1 + n")}) == 5  # fmt: skip
    helper = "@device\ndef h(a: i32) -> i32:\n    return a + {}\n"
    assert of("out[0] = h(n)", helper.format(1)) != of("out[0] = h(n)", helper.format(2))


DAMAGES = [
    (lambda d: (d / "a1.in").unlink(), "add.1/a1.in: the file is missing"),
    (lambda d: (d / "launch.json").unlink(), "add.1/launch.json: the file is missing"),
    (
        lambda d: (d / "a1.in").write_bytes((d / "a1.in").read_bytes()[:-1]),
        "a1.in: 31 bytes, where launch.json says 32",
    ),
    (lambda d: (d / "a0.out").write_bytes(bytes(32)), "add.1/a0.out: its SHA-256 is 66687aad"),
    (lambda d: (d / "launch.json").write_text((d / "launch.json").read_text()[:50]), "launch.json: no JSON"),
    (lambda d: (d / "launch.json").write_text("[]"), "launch.json: one JSON object is expected"),
]
EDITS = [
    ({"version": 2}, "version 2; this reads version 1"),
    ({"version": None}, "version None; this reads version 1"),
    ({"grid": [1, 1]}, "grid is [1, 1], where three positive integers are expected"),
    ({"block": [0, 1, 1]}, "block is [0, 1, 1], where three positive integers are expected"),
    ({"sharedBytes": -1}, "sharedBytes is -1, where a count is expected"),
    ({"waveWidth": "8"}, "waveWidth is '8', where a count is expected"),
    ({"kernel": 3}, "kernel is 3, where text is expected"),
    ({"args": None}, "args is no list of up to 64 objects"),
    ({"allocs": [{"bytes": 1}]}, "allocs[0] is {'bytes': 1}, where bytes, in and out are expected"),
    ({"args": [{"kind": "texture"}]}, "args[0] is {'kind': 'texture'}, which is no argument"),
    ({"args": [{"kind": "scalar", "hex": "FF"}]}, "hex is 'FF', where 1 to 8 bytes of two hex digits are expected"),
    ({"args": [{"kind": "buffer", "alloc": 2, "offset": 0}]}, "args[0]: allocation 2 of 2"),
    ({"args": [{"kind": "buffer", "alloc": 0, "offset": 32}]}, "args[0]: offset 32 in an allocation of 32 bytes"),
    ({"extra": 1}, "the key 'extra' is unknown"),
]


@pytest.mark.parametrize("damage, reason", DAMAGES)
def test_a_damaged_recording_is_refused_by_file_and_reason(folder, damage, reason):
    add.launch(stream(), grid=1, block=1)(numbers(), numbers(), 0)
    damage(folder / "add.1")
    with pytest.raises(RecordingError) as caught:
        read(folder / "add.1")
    assert reason in str(caught.value)


@pytest.mark.parametrize("edit, reason", EDITS)
def test_a_launch_json_that_is_no_launch_is_refused(folder, edit, reason):
    add.launch(stream(), grid=1, block=1)(numbers(), numbers(), 0)
    place = folder / "add.1/launch.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | edit))
    with pytest.raises(RecordingError) as caught:
        read(folder / "add.1")
    assert str(caught.value) == f"add.1/launch.json: {reason}" or reason in str(caught.value)


def test_a_missing_key_is_named(folder):
    add.launch(stream(), grid=1, block=1)(numbers(), numbers(), 0)
    place = folder / "add.1/launch.json"
    description = json.loads(place.read_text())
    del description["backend"]
    place.write_text(json.dumps(description))
    with pytest.raises(RecordingError, match="the key 'backend' is missing"):
        read(folder / "add.1")
