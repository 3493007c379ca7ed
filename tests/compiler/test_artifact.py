"""Artifacts as data: determinism, JSON, provenance, text."""

import json
import subprocess
import sys

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import Artifact, ArtifactError, Options, compile_kernel
from kohakutpu.kernels.linear import linear_add, linear_silu, linear_silu_staged, matmul
from kohakutpu.lang import dims, kernel
from kohakutpu.machine import load
from kohakutpu.reference import interpret

from .kernels import parts, two_results

CASES = {
    "fused": (linear_silu, {"x": (20, 64), "w": (24, 64)}, {"gm": 3, "gn": 2}, Options()),
    "staged": (linear_silu, {"x": (20, 64), "w": (24, 64)}, {"gm": 3, "gn": 2, "fuse": False},
               Options("published", "arrays")),
    "batched": (linear_silu_staged, {"x": (2, 1, 20, 64), "w": (24, 64)}, {"gm": 2, "gn": 2}, Options()),
    "operands": (linear_add, {"x": (20, 64), "w": (24, 64), "r": (20, 24)}, {"gm": 2, "gn": 2}, Options()),
    "two": (two_results, {"x": (8, 64), "w": (16, 64)}, {}, Options()),
    "parts": (parts, {"x": (2, 9, 70)}, {"p": 100}, Options()),
}  # fmt: skip


def made(name, machine):
    function, shapes, knobs, options = CASES[name]
    return compile_kernel(function, machine, shapes, knobs, options)


@pytest.mark.parametrize("name", CASES)
def test_json_round_trip(bench, name):
    artifact = made(name, bench)
    text = artifact.to_json()
    again = Artifact.from_json(text)
    assert (
        again == artifact and again.to_json() == text and again.digest == artifact.digest == json.loads(text)["digest"]
    )


@pytest.mark.parametrize("name", CASES)
def test_compiling_twice_gives_the_same(bench, name):
    assert made(name, bench).digest == made(name, bench).digest


def test_the_digest_does_not_depend_on_the_process():
    code = (
        "from kohakutpu.kernels.linear import linear_silu as k; from kohakutpu.machine import load; "
        "from kohakutpu.compiler import compile_kernel; "
        "print(compile_kernel(k, load('quad'), {'x': (32, 64), 'w': (32, 64)}, {'gm': 4}).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert digests == {
        compile_kernel(linear_silu, load("quad"), {"x": (32, 64), "w": (32, 64)}, {"gm": 4}).digest + "\n"
    }


def test_what_changes_the_digest(bench):
    base = made("fused", bench)
    assert len({base.digest, made("staged", bench).digest, made("batched", bench).digest}) == 3
    other = compile_kernel(
        linear_silu, bench, {"x": (20, 64), "w": (24, 64)}, {"gm": 3, "gn": 2}, Options(addresses={"y": 0x8000})
    )
    assert other.digest != base.digest


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda r: r.update(format="other"), "expected an artifact of format kohakutpu-artifact-1, got 'other'"),
        (lambda r: r.pop("rounds"), "malformed artifact: KeyError: 'rounds'"),
        (lambda r: r["rounds"][0]["steps"].append(["jump", 1]), r"step \['jump', 1\] is none of seed, kick, await"),
        (lambda r: r["rounds"][0]["flits"].__setitem__(0, "xyz"), "malformed artifact: ValueError"),
        (lambda r: r["buffers"][0].update(address=64), "the artifact's digest is .* and its contents have"),
        (lambda r: r["buffers"][0]["layout"].update(kind="Conv"), "layout kind 'Conv'"),
    ],
)
def test_damaged_records_are_refused(bench, change, reason):
    record = json.loads(made("fused", bench).to_json())
    change(record)
    with pytest.raises(ArtifactError, match=reason):
        Artifact.from_dict(record)


@pytest.mark.parametrize("text, reason", [("{", "not JSON"), ("[]", "got 'list'"), ("{}", "got None")])
def test_what_is_no_artifact(text, reason):
    with pytest.raises(ArtifactError, match=reason):
        Artifact.from_json(text)


@pytest.mark.parametrize("name", CASES)
def test_every_element_knows_its_statement(bench, name):
    """The interpreter says which statement wrote an element, the artifact says the same."""
    function, shapes, knobs, _ = CASES[name]
    artifact = made(name, bench)
    operands = {n: np.zeros(s, np.float16) for n, s in shapes.items()}
    image = interpret(function.trace(**knobs), function.solve(shapes), operands)
    for output in artifact.outputs:
        for index in np.ndindex(*output.shape):
            statement, instance = artifact.writer_of(output.name, index)
            assert statement.id == image.writers[output.name][index]
            assert instance == () or instance in artifact.stages[-1].nodes
    with pytest.raises(KeyError, match="no statement writes"):
        artifact.writer_of(output.name, tuple(n + 1 for n in output.shape))
    assert "<<=" in statement.text and statement.source.split(":")[0].endswith(".py")


def test_later_statements_win():
    M = dims("M")

    @kernel
    def twice(x=L.In(M), y=L.Out(M)):
        y <<= x + 1
        y <<= y * 2

    artifact = compile_kernel(twice, load("quad"), {"x": (40,)})
    assert artifact.writer_of("y", (3,))[0].id == artifact.writer_of("y", (np.int64(3),))[0].id == 1


@pytest.mark.parametrize(
    "name, index, error, message",
    [
        ("y", 5, TypeError, "writer_of: expected a tuple of 2 integers for an element of y, got 5"),
        ("y", (0,), TypeError, r"a tuple of 2 integers for an element of y, got \(0,\)"),
        ("y", (0, 1.5), TypeError, r"a tuple of 2 integers for an element of y, got \(0, 1.5\)"),
        ("q", (0, 0), KeyError, "has no buffer 'q'; it has "),
        ("x", (0, 0), KeyError, "no statement writes x, which is 'in'"),
        (None, (0, 0), TypeError, "expected the name of a buffer, such as 'y', got BufferImage"),
    ],
)
def test_an_element_that_is_none_is_refused_by_name(bench, name, index, error, message):
    artifact = made("fused", bench)
    with pytest.raises(error, match=message) as found:
        artifact.writer_of(artifact.outputs[0] if name is None else name, index)
    assert len(str(found.value)) < 120


def test_buffers_by_name(bench):
    artifact = made("fused", bench)
    assert artifact.buffer("y").role == "out"
    with pytest.raises(KeyError, match="has no buffer 'z'; it has x, w, y"):
        artifact.buffer("z")


def test_summary_and_listing(bench):
    artifact = made("staged", bench)
    summary = artifact.summary()
    assert f"{artifact.flit_count} flits" in summary and artifact.digest in summary
    assert "stage 1 VC" in summary and "const-1.4426950408889634" in summary and "lowering=published" in summary
    listing = artifact.flit_listing().splitlines()
    assert len([line for line in listing if line.startswith("CU_INST")]) == artifact.flit_count
    assert sum(artifact.kinds().values()) == artifact.flit_count
    assert any(line.startswith("# steps") for line in listing)


def test_no_path_of_this_checkout_is_inside(bench):
    text = made("fused", bench).to_json()
    assert "kohakutpu/kernels/linear.py:" in text and str(__file__).rsplit("/tests", 1)[0] not in text


def test_words_of_a_stage(bench):
    artifact = compile_kernel(matmul, bench, {"a": (20, 64), "b": (24, 64)}, {"gm": 2, "gn": 2})
    assert [stage.words for stage in artifact.stages] == [3 * 3 * 4]
    assert [stage.words for stage in made("fused", bench).stages] == [0, 2 * 3 * 6]
    assert [stage.words for stage in made("operands", bench).stages] == [36, 36]
