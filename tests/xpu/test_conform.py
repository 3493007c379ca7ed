"""Replaying recorded launches (spec/xpu.md 3.2 and 3.3): every outcome, every bound, the held list, the command."""

import json

import numpy as np
import pytest

from kohakutpu.cli.main import main
from kohakutpu.conformance.xpu.compare import APART, EXACT, Bound, compare, scale, ulp_distance
from kohakutpu.conformance.xpu.held import HeldError, parse
from kohakutpu.conformance.xpu.replay import ConformanceError, conform
from kohakutpu.reference.xpu import ReferenceBackEnd
from kohakutpu.xpu import (
    KernelBuffer, KernelStream, Wave, bf16, div, f16, f32, f64, i8, i32, i64, kernel, thread, u8, u32, u64, wave,
)  # fmt: skip
from kohakutpu.xpu.launch import Runtime

NAN, INF = float("nan"), float("inf")


@kernel
def scaled(out: KernelBuffer[f32], a: KernelBuffer[f32], by: f32):
    out[thread.x()] = a[thread.x()] * by


@kernel
def counted(out: KernelBuffer[i32], a: KernelBuffer[i32]):
    out[thread.x()] = div(100, a[thread.x()])


class Crooked(ReferenceBackEnd):
    """The reference, with `bend` applied to the arguments' arrays afterwards."""

    def __init__(self, bend, name):
        self.bend, self.name = bend, name

    def run(self, request):
        super().run(request)
        self.bend(*(value.array for value in request.arguments if isinstance(value, KernelBuffer)))


def device(bend=lambda *arrays: None, name="cpu"):
    runtime = Runtime()
    runtime.register(Crooked(bend, name))
    return KernelStream(runtime)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where launches are recorded."""
    monkeypatch.setenv("XPU_RECORD", str(tmp_path / "corpus"))
    return tmp_path / "corpus"


def record_scaled(bend=lambda *arrays: None, values=range(1, 9), name="cpu"):
    values = np.array([*values], np.float32)
    scaled.launch(device(bend, name), grid=1, block=len(values))(
        KernelBuffer.of(f32, np.zeros(len(values), np.float32)), KernelBuffer.of(f32, values), 0.1
    )


def record_counted(bend=lambda *arrays: None):
    a = KernelBuffer.of(i32, np.arange(1, 9, dtype=np.int32))
    counted.launch(device(bend), grid=1, block=8)(KernelBuffer(i32, 8), a)


def nudged(index, steps):
    """Moves element `index` of the first array by some units in the last place."""

    def bend(out, *_):
        out.view(np.int32)[index] += steps

    return bend


def outcomes(folder, kernels=(scaled, counted), held="", **more):
    return [(one.outcome, one.detail) for one in conform(folder, kernels, parse(held, "held.tsv"), **more)]


def only(folder, *arguments, **more):
    (one,) = outcomes(folder, *arguments, **more)
    return one


def test_agreement_passes(folder):
    record_scaled()
    record_counted()
    assert outcomes(folder) == [("pass", ""), ("pass", "")]


def test_a_float_that_disagrees_is_named_with_its_distances(folder):
    record_scaled(lambda out, a: (nudged(2, 3)(out), nudged(5, -1)(out)))
    outcome, detail = only(folder)
    assert outcome == "fail"
    assert detail == (
        "out[2] is 0.300000101 (0x3e99999d) on cpu and 0.300000012 (0x3e99999a) by the reference; "
        "worst 3 ulps, 1.12e-07 of the scale; 2 of 8 outside ulps=0; a bound that is meant goes on the held list "
        "(--held)"
    )


def test_an_integer_that_disagrees_is_named(folder):
    record_counted(nudged(4, 2))
    assert only(folder) == (
        "fail", "out[4] is 22 on cpu and 20 by the reference; worst 2 steps; 1 of 8 outside ulps=0",
    )  # fmt: skip


def test_a_disagreement_in_an_argument_that_is_only_read_is_found(folder):
    record_scaled(lambda out, a: nudged(7, 1)(a))
    outcome, detail = only(folder)
    assert outcome == "fail" and detail.startswith("a[7] is 8.00000095 (0x41000001) on cpu and 8 (0x41000000)")


def test_a_disagreement_that_is_held(folder):
    record_scaled(nudged(0, 1))
    outcome, detail = only(folder, held="scaled\tcpu\theld\titem 12")
    assert outcome == "held" and detail.startswith("item 12: out[0] is 0.1")


def test_a_held_kernel_that_agrees_is_stale(folder):
    record_scaled()
    assert only(folder, held="scaled\t*\theld\titem 12") == ("stale", "item 12")


def test_one_launch_of_a_held_kernel_may_agree_while_another_does_not(folder):
    record_scaled()
    record_scaled(nudged(0, 1))
    found = outcomes(folder, held="scaled\tcpu\theld\titem 12")
    assert [outcome for outcome, _ in found] == ["pass", "held"]


def test_a_kernel_without_semantics_is_refused(folder):
    record_scaled()

    def body(out: KernelBuffer[f32], a: KernelBuffer[f32], by: f32):
        out[0] = f32(thread.clock())

    outcome, detail = only(folder, [renamed(body, "scaled")])
    assert outcome == "refused" and detail.startswith("XPU-REF01: scaled: thread.clock has no reference value")
    assert detail.endswith("; the kernel's source has changed since the recording")


def renamed(body, name):
    body.__qualname__ = name
    return kernel(body)


def edit(folder, change):
    place = folder / "launch.json"
    description = json.loads(place.read_text())
    change(description)
    place.write_text(json.dumps(description))


def test_an_argument_of_another_kind_is_refused(folder):
    record_scaled()
    edit(folder / "scaled.1", lambda d: d["args"].__setitem__(2, {"kind": "other", "code": 7}))
    assert only(folder) == ("refused", "argument by is of kind other, code 7")


@Wave(width=4)
@kernel
def summed(out: KernelBuffer[f32]):
    out[thread.x()] = wave.reduce_sum_f32(out[thread.x()])


def test_the_recorded_width_is_the_waves(folder):
    values = np.arange(8, dtype=np.float32)
    summed.launch(device(), grid=1, block=8)(KernelBuffer.of(f32, values))
    assert outcomes(folder, [summed]) == [("pass", "")]
    edit(folder / "summed.1", lambda d: d.__setitem__("waveWidth", 8))
    assert only(folder, [summed])[0] == "fail"
    edit(folder / "summed.1", lambda d: d.__setitem__("waveWidth", 3))
    assert only(folder, [summed])[1].startswith("XPU-REF01: summed: a wave of 3 lanes: a power of two from 1 to 64")


def test_undefined_behaviour_is_an_outcome(folder):
    record_counted()
    place = folder / "counted.1"
    (place / "a1.in").write_bytes(bytes(32))
    from hashlib import sha256

    edit(place, lambda d: d["allocs"][1].__setitem__("in", sha256(bytes(32)).hexdigest()))
    outcome, detail = only(folder)
    assert outcome == "undefined" and detail.startswith("XPU-REF02: division by zero: 100 / 0")


MISFITS = [
    (lambda d: d["args"].pop(), "2 arguments, where the kernel takes 3"),
    (lambda d: d["args"].reverse(), "argument out is a scalar, where the kernel takes a buffer"),
    (lambda d: d["args"][2].__setitem__("hex", "00"), "argument by has 1 bytes, where the kernel takes 4"),
    (lambda d: d["args"][1].__setitem__("offset", 2), "argument a begins at byte 2, no multiple of its element's 4"),
    (lambda d: d.__setitem__("version", 9), "scaled.1/launch.json: version 9; this reads version 1"),
    (lambda d: d["allocs"][0].__setitem__("bytes", 16), "scaled.1/a0.in: 32 bytes, where launch.json says 16"),
]


@pytest.mark.parametrize("change, reason", MISFITS)
def test_a_damaged_recording_is_undefined(folder, change, reason):
    record_scaled()
    edit(folder / "scaled.1", change)
    assert only(folder) == ("undefined", reason)


@pytest.mark.parametrize("file", ["a0.in", "a0.out", "a1.in", "a1.out"])
def test_no_flipped_bit_of_an_allocation_passes(folder, file):
    record_scaled()
    place = folder / "scaled.1" / file
    whole = place.read_bytes()
    for bit in range(0, 8 * len(whole), 11):
        place.write_bytes(bytes(value ^ (1 << bit % 8 if n == bit // 8 else 0) for n, value in enumerate(whole)))
        outcome, detail = only(folder)
        assert outcome == "undefined" and f"scaled.1/{file}: its SHA-256 is" in detail


def test_no_damage_of_a_launch_json_ends_the_run(folder):
    """Whatever a value becomes, the recording gets an outcome."""
    record_scaled()
    place = folder / "scaled.1/launch.json"
    whole = json.loads(place.read_text())
    odd = [
        None,
        True,
        -1,
        0,
        3,
        1.5,
        "",
        "x",
        [],
        [1],
        {},
        [{"kind": []}] * 3,
        [{"bytes": 4}],
        "é\t\n",
        [[1, 1, 1]] * 2,
    ]
    seen = set()
    for key in whole:
        for value in odd:
            place.write_text(json.dumps(whole | {key: value}))
            seen.add(only(folder)[0])
    for cut in range(0, len(json.dumps(whole)), 7):
        place.write_text(json.dumps(whole)[:cut])
        assert only(folder)[0] == "undefined"
    for text in ("[" * 100_000, "\x00", '{"version": 1e999}', "9" * 5000):
        place.write_text(text)
        assert only(folder)[0] == "undefined"
    place.write_bytes(b"\xff\xfe")
    assert only(folder)[0] == "undefined"
    assert seen <= {"pass", "fail", "undefined", "missing", "refused"} and {"undefined", "missing"} <= seen


def test_a_launch_that_nothing_can_be_compared_of_is_undefined(folder):
    @kernel
    def idle(a: f32):
        pass

    idle.launch(device(), grid=1)(1.0)
    assert only(folder, [idle]) == ("undefined", "no buffer that could be compared")


def test_a_missing_file_is_undefined(folder):
    record_scaled()
    (folder / "scaled.1/a1.out").unlink()
    assert only(folder) == ("undefined", "scaled.1/a1.out: the file is missing")


def test_a_kernel_that_is_not_there_is_missing(folder):
    record_scaled()
    assert only(folder, [counted]) == ("missing", "no kernel of that name")


def test_two_kernels_of_one_name_are_refused(folder):
    record_scaled()

    def body(out: KernelBuffer[f32]):
        pass

    with pytest.raises(ConformanceError, match="scaled.1: 2 kernels are called scaled"):
        conform(folder, [scaled, renamed(body, "scaled")])


def test_a_launch_over_its_budget_is_slow(folder):
    record_scaled()
    outcome, detail = only(folder, budget=1e-9)
    assert outcome == "slow" and detail.startswith("XPU-REF03: scaled")


def test_a_changed_source_is_said(folder):
    record_scaled()

    def body(out: KernelBuffer[f32], a: KernelBuffer[f32], by: f32):
        out[thread.x()] = by * a[thread.x()]

    changed = renamed(body, "scaled")
    assert only(folder, [changed]) == ("pass", "the kernel's source has changed since the recording")


def test_the_back_end_ktpu_is_judged_in_machine_arithmetic(folder):
    record_scaled(name="ktpu")  # in host arithmetic, which the machine does not have
    assert only(folder)[0] == "fail"

    class Machine(ReferenceBackEnd):
        name = "ktpu"

        def run(self, request):
            from kohakutpu.reference.xpu import MACHINE, Launch, run

            run(request.kernel, request.arguments, Launch(request.grid, request.block), MACHINE)

    runtime = Runtime()
    runtime.register(Machine())
    values = np.arange(1, 9, dtype=np.float32)
    scaled.launch(KernelStream(runtime), grid=1, block=8)(KernelBuffer(f32, 8), KernelBuffer.of(f32, values), 0.1)
    assert [outcome for outcome, _ in outcomes(folder)] == ["fail", "pass"]


@kernel
def views(words: KernelBuffer[u32], halves: KernelBuffer[f16]):
    words[0] = u32(halves[0]) + 1


def test_every_byte_of_a_shared_allocation_is_compared_once(folder):
    """The first parameter's part as its elements, what lies before it as the other's, odd bytes as bytes."""

    def recorded(spoil):
        slab = KernelBuffer.of(u8, np.full(19, 60, np.uint8))
        order = device(lambda words, halves: spoil(slab.allocation.bytes))
        words, halves = slab.slice(8, 8).word_view(), slab.slice(0, 8).half_view()
        views.launch(order, grid=1)(words, halves)
        return [one for one in outcomes(folder, [views])][-1]

    def spoil(at):
        return lambda data: data.__setitem__(at, 61)

    assert recorded(lambda data: None) == ("pass", "")
    folder.rename(folder.with_name("first"))
    assert recorded(spoil(12))[1].startswith("words[1] is 1010580541 on cpu and 1010580540 by the reference")
    folder.rename(folder.with_name("second"))
    assert recorded(spoil(6))[1].startswith("halves[3] is")
    folder.rename(folder.with_name("third"))
    assert recorded(spoil(18))[1].startswith("words, bytes past its last element[2] is 61 on cpu and 60")


@pytest.mark.parametrize(
    "kind, left, right, distance",
    [
        (f32, 0.0, -0.0, 0), (f32, 1.0, np.nextafter(np.float32(1), np.float32(2)), 1),
        (f32, 1e-45, -1e-45, 2), (f32, NAN, NAN, 0), (f32, NAN, 1.0, int(APART)), (f32, INF, 3.4028235e38, 1),
        (f32, INF, -INF, 2 * 0x7F800000), (f16, 1.0, 1.0009766, 1), (f16, 65504.0, INF, 1),
        (f64, 1.0, np.nextafter(1.0, 2), 1),
        (f64, -1.7976931348623157e308, 1.7976931348623157e308, 2 * 0x7FEFFFFFFFFFFFFF),
        (f64, NAN, INF, int(APART)),
    ],
)  # fmt: skip
def test_ulp_distance_is_sign_magnitude(kind, left, right, distance):
    pair = [np.array([value], kind.dtype) for value in (left, right)]
    assert int(ulp_distance(kind, *pair)[0]) == int(ulp_distance(kind, *pair[::-1])[0]) == distance


@pytest.mark.parametrize("kind, infinity", [(f16, 0x7C00), (bf16, 0x7F80)])
def test_ulp_distance_counts_the_numbers_between(kind, infinity):
    """Against the rank of each number among all of its format; every number meets eight others."""
    magnitudes = np.arange(infinity + 1)
    bits = np.concatenate([0x8000 | magnitudes[:0:-1], magnitudes]).astype(np.uint16)  # ascending, one zero
    rank = np.arange(len(bits))
    for seed in range(8):
        other = np.random.default_rng(seed).permutation(len(bits))
        pair = bits.view(kind.dtype), bits[other].view(kind.dtype)
        np.testing.assert_array_equal(ulp_distance(kind, *pair), np.abs(rank - rank[other]))


def test_bfloat16_has_its_own_nans():
    quiet, other, big, infinity = (np.array([bits], np.uint16) for bits in (0x7FC0, 0xFF81, 0x7C01, 0x7F80))
    assert ulp_distance(bf16, quiet, other)[0] == 0  # two NaNs
    assert ulp_distance(bf16, infinity, big)[0] == 0x7F80 - 0x7C01  # a NaN in float16's layout is a number here
    assert ulp_distance(bf16, quiet, infinity)[0] == APART


def result(kind, before, reference, found, bound=EXACT):
    return compare(kind, *(np.array(values, kind.dtype) for values in (before, reference, found)), bound)


def test_a_bound_in_ulps():
    up = float(np.nextafter(np.float32(1), np.float32(2)))
    assert result(f32, [0, 0], [1, 1], [up, 1]).first == 0
    assert result(f32, [0, 0], [1, 1], [up, 1], Bound(ulps=1)).outside == 0
    assert result(f32, [0, 0], [1, NAN], [1, 1], Bound(ulps=1 << 62, rel=1e9)).first == 1  # never a NaN for a number
    assert result(f32, [0], [NAN], [NAN]).outside == 0


def test_a_relative_bound_is_of_the_scale_and_either_measure_admits():
    near = [100.0, 1e-9]
    assert result(f32, [0, 0], [100.0, 0.0], near).first == 1
    assert result(f32, [0, 0], [100.0, 0.0], near, Bound(rel=1e-10)).outside == 0
    assert result(f32, [0, 0], [100.0, 0.0], near, Bound(rel=1e-12)).first == 1
    up = float(np.nextafter(np.float32(100), np.float32(200)))
    assert result(f32, [0, 0], [100.0, 0.0], [up, 1e-9], Bound(rel=1e-10)).first == 0
    assert result(f32, [0, 0], [100.0, 0.0], [up, 1e-9], Bound(ulps=1, rel=1e-10)).outside == 0
    assert result(f32, [0], [INF], [3e38], Bound(rel=0.5)).first == 0 and result(f32, [0], [INF], [INF]).outside == 0


@pytest.mark.parametrize(
    "kind, before, after, expected",
    [
        (f32, [9.0, 0, 0], [9.0, 2.0, -3.0], 3.0),  # what the launch left as it was does not count
        (f32, [9.0, 5.0], [9.0, 5.0], 9.0),  # unless it left everything
        (f32, [0, 0, 0], [-3e38, 2.0, INF], 2.0),  # no sentinel, nothing infinite
        (f32, [0, 0], [8.5e37, 8.6e37], 8.5e37),  # a quarter of the largest value is one
        (f16, [0, 0], [16376.0, 1000.0], 1000.0),
        (f64, [0, 0], [1e300, 4.5e307], 1e300),
        (f32, [0, 0], [NAN, -3e38], 0.0),
    ],
)
def test_the_scale(kind, before, after, expected):
    before, after = (np.array(values, kind.dtype) for values in (before, after))
    assert scale(kind, before, after) == float(np.array(expected, kind.dtype))


def test_what_does_not_set_the_scale_must_still_match():
    assert result(f32, [9.0, 0], [9.0, 1.0], [8.0, 1.0], Bound(rel=1e-3)).first == 0
    assert result(f32, [0, 0], [-3e38, 1.0], [-2.9e38, 1.0], Bound(rel=1e-3)).first == 0


@pytest.mark.parametrize(
    "kind, left, right, steps",
    [(i8, -128, 127, 255), (u8, 0, 255, 255), (i32, -1, 1, 2), (i64, -(1 << 63), (1 << 63) - 1, (1 << 64) - 1),
     (u64, 0, (1 << 64) - 1, (1 << 64) - 1)],
)  # fmt: skip
def test_integers_are_steps_apart(kind, left, right, steps):
    assert result(kind, [0], [left], [right]).ulps == result(kind, [0], [right], [left]).ulps == steps
    assert result(kind, [0], [left], [right], Bound(ulps=steps)).outside == 0
    assert result(kind, [0], [left], [right], Bound(ulps=steps - 1)).first == 0
    assert result(kind, [0], [left], [right], Bound(rel=1e30)).first == 0  # rel is for floats


def test_a_bound_of_the_held_list_admits_and_says_how_much_was_used(folder):
    record_scaled(nudged(2, 3))
    detail = "worst 3 ulps, 1.12e-07 of the scale, within ulps=3"
    assert only(folder, held="scaled\tcpu\tulps=3\tby libm") == ("pass", detail)
    assert only(folder, held="scaled\tcpu\tulps=2\tby libm")[0] == "fail"
    assert only(folder, held="scaled\tcpu\tulps=2,rel=1.2e-7\tby libm")[0] == "pass"
    assert only(folder, held="scaled\t*\tulps=9\tx\nscaled\tcpu\tulps=2\ty")[0] == "fail"  # the exact one wins
    assert only(folder, held="scaled\tcuda\tulps=9\tx")[0] == "fail"


def test_an_integer_step_bound(folder):
    record_counted(nudged(0, 2))
    assert only(folder, held="counted\tcpu\tulps=2\tquantised")[0] == "pass"
    assert only(folder, held="counted\tcpu\tulps=1,rel=5\tquantised")[0] == "fail"


def test_comments_and_short_lines_say_nothing():
    found = parse("# a comment\n\n  \nscaled\tcpu\nscaled\tcpu\theld\tx\textra\n", "h")
    assert [entry.kernel for entry in found.entries] == ["scaled"] and found.ignored == (4,)


@pytest.mark.parametrize(
    "line, reason",
    [
        ("k\tcpu\tulps=x\twhy", "'ulps=x', where held, ulps=N, rel=X or ulps=N,rel=X is expected"),
        ("k\tcpu\tulps=-1\twhy", "'ulps=-1', where"), ("k\tcpu\trel=nan\twhy", "'rel=nan', where"),
        ("k\tcpu\trel=1e999\twhy", "'rel=1e999', where"), ("k\tcpu\tulps=1,ulps=2\twhy", "'ulps=1,ulps=2', where"),
        ("k\tcpu\trel=.\twhy", "'rel=.', where"), ("k\tcpu\tulps=99999999999999999999\twhy", "', where held"),
        ("k\tcpu\tHELD\twhy", "'HELD', where"), ("k\tcpu\theld", "what is held and why are expected, not"),
        ("\tcpu\theld\twhy", "a kernel, a back end"),
        ("k\t*\theld\ta\nk\t*\tulps=1\tb", "h:2: k on * again, after line 1"),
    ],
)  # fmt: skip
def test_a_held_list_that_is_refused(line, reason):
    with pytest.raises(HeldError) as caught:
        parse(line, "h")
    assert reason in str(caught.value) and str(caught.value).startswith("h:")


PROGRAM = """
from kohakutpu.xpu import KernelBuffer, f32, kernel, thread

@kernel
def scaled(out: KernelBuffer[f32], a: KernelBuffer[f32], by: f32):
    out[thread.x()] = a[thread.x()] * by
"""


@pytest.fixture
def program(tmp_path):
    """A file with the kernel."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_the_command_writes_the_table_and_exits_by_the_outcomes(folder, program, capsys):
    record_scaled()
    assert main(["xpu", "conform", str(folder), "--kernels", program]) == 0
    out, err = capsys.readouterr()
    assert out == "kohakutpu: conformance: 1 launch: 1 pass\n" and err == "scaled.1 (cpu): pass\n"
    assert (folder / "conformance.tsv").read_text() == (
        "kernel\tbackend\tlaunch\toutcome\tdetail\nscaled\tcpu\tscaled.1\tpass\t\n"
    )
    record_scaled(nudged(1, 1))
    assert main(["xpu", "conform", str(folder), "--kernels", program]) == 1
    assert "scaled.2 (cpu): fail: out[1] is" in capsys.readouterr().out
    assert (folder / "conformance.tsv").read_text().splitlines()[2].startswith("scaled\tcpu\tscaled.2\tfail\tout[1] is")
    held = folder / "held.tsv"
    held.write_text("scaled\tcpu\tulps=1\tby libm\nother\tcpu\theld\titem 3\nshort\n")
    assert main(["xpu", "conform", str(folder), "--kernels", program, "--held", str(held)]) == 0
    err = capsys.readouterr().err
    assert "held.tsv:2: no launch of other was recorded" in err and "held.tsv:3 has fewer than three fields" in err


def test_the_command_dumps_the_references_bytes_of_a_failed_launch(folder, program):
    record_scaled()
    record_scaled(nudged(1, 1))
    command = ["xpu", "conform", str(folder), "--kernels", program]
    assert main(command) == 1 and not list(folder.glob("*/*.ref"))
    assert main([*command, "--dump"]) == 1
    assert sorted(path.parent.name + path.name for path in folder.glob("*/*.ref")) == [
        "scaled.2a0.ref",
        "scaled.2a1.ref",
    ]
    assert (folder / "scaled.2/a0.ref").read_bytes() == (folder / "scaled.1/a0.out").read_bytes()


@pytest.mark.parametrize(
    "missing, status", [("nothing", 2), ("empty", 2), ("uncompared", 1), ("kernels", 2), ("held", 2)]
)
def test_a_corpus_that_proves_nothing_is_an_error(folder, program, capsys, missing, status):
    record_scaled()
    command = ["xpu", "conform", str(folder), "--kernels", program]
    if missing == "nothing":
        command[2] = str(folder / "nowhere")
    if missing == "empty":
        command[2] = str(folder / "scaled.1")
    if missing == "uncompared":
        edit(folder / "scaled.1", lambda d: d.__setitem__("kernel", "other"))
    if missing == "kernels":
        command[3:] = []
    if missing == "held":
        command += ["--held", str(folder / "held.tsv")]
    assert main(command) == status
    said = {
        "nothing": "nowhere: a directory of recorded launches is expected", "empty": "no recorded launch",
        "uncompared": "nothing was compared", "kernels": "--kernels says where the kernels are",
        "held": "held.tsv: no such file or directory",
    }  # fmt: skip
    assert said[missing] in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "text, reason",
    [
        ("x = 1\n", "no kernel is declared there"),
        ("1 / 0\n", "failed to load: ZeroDivisionError"),
        (None, "no such file"),
    ],
)
def test_kernels_that_cannot_be_loaded_are_refused(folder, tmp_path, capsys, text, reason):
    record_scaled()
    path = tmp_path / "program.py"
    if text:
        path.write_text(text)
    assert main(["xpu", "conform", str(folder), "--kernels", str(path)]) == 2
    assert reason in capsys.readouterr().err


def test_a_survey_of_a_file(program, capsys):
    assert main(["xpu", "survey", program]) == 0
    assert capsys.readouterr().out == "kernel\tverdict\trefusals\tfirst reason\nscaled\tRUNS\t0\n"
