"""The corpus: a kernel for every block of the language, and kernels that people know.

Each runs on random, ragged and adversarial data, is held against numpy, is recorded from every back end, and is
replayed through the reference. `python tests/xpu/corpus/record.py` records what is committed.
"""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from kohakutpu.backends.cpu import CpuBackEnd
from kohakutpu.backends.ktpu import KtpuBackEnd
from kohakutpu.cli.main import main
from kohakutpu.conformance.xpu import census, held
from kohakutpu.conformance.xpu.load import load, module_of
from kohakutpu.conformance.xpu.replay import conform, machine
from kohakutpu.reference.xpu import ReferenceBackEnd
from kohakutpu.xpu import KernelStream, Undefined, XpuLaunchError
from kohakutpu.xpu.faults import FAULTS
from kohakutpu.xpu.launch import Runtime
from kohakutpu.xpu.tree import Invoke, Node, walk
from kohakutpu.xpu.verbs import VERBS

CORPUS = Path(__file__).parent / "corpus"
FILES = sorted(path.stem for path in CORPUS.glob("*.py") if path.stem.startswith(("blocks_", "known_")))
BACKENDS = {"cpu": CpuBackEnd, "ktpu": KtpuBackEnd}
HELD = held.load(CORPUS / "held.tsv")
EXCUSES = census.load_excuses(CORPUS / "excuses.tsv")


@pytest.fixture(scope="session")
def data():
    """The module that makes launches."""
    return module_of(CORPUS / "data.py")


@cache
def kernels(file: str) -> list:
    """The kernels of a file of the corpus."""
    return load([str(CORPUS / f"{file}.py")])


@cache
def every() -> dict:
    """All kernels by name."""
    return {kernel.name: kernel for file in FILES for kernel in kernels(file)}


def stream(backend) -> KernelStream:
    runtime = Runtime()
    runtime.register(backend)
    return KernelStream(runtime)


@pytest.mark.parametrize("file", FILES)
def test_the_reference_agrees_with_numpy(data, file):
    order = stream(ReferenceBackEnd())
    for kernel in kernels(file):
        for kind in data.KINDS:
            data.launch(kernel, kind, order)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("file", FILES)
def test_recordings_of_a_back_end_replay_and_every_kernel_is_checked(data, file, backend, tmp_path, monkeypatch):
    """Integers to the bit, floats within what held.tsv states; nothing unchecked that excuses.tsv does not name.

    Machine arithmetic is to the bit too. An excuse is the back end's own reason.
    """
    monkeypatch.setenv("XPU_RECORD", str(tmp_path))
    monkeypatch.setenv("XPU_RECORD_PER_KERNEL", "4")
    order, reference = stream(BACKENDS[backend]()), stream(ReferenceBackEnd())
    for kernel in kernels(file):
        for kind in (*data.KINDS, data.SPECIAL):
            try:
                data.launch(kernel, kind, order, oracle=not machine(backend))
            except Undefined:
                with monkeypatch.context() as patch, pytest.raises(Undefined):
                    patch.delenv("XPU_RECORD")
                    data.launch(kernel, kind, reference)
            except XpuLaunchError as refused:
                reasons = EXCUSES.get((kernel.name, backend), "").split(" | ")
                assert any(reason in str(refused) for reason in reasons), kind
    names = {kernel.name for kernel in kernels(file)}
    excused = {key: item for key, item in EXCUSES.items() if key[0] in names and key[1] == backend}
    judged = conform(tmp_path, kernels(file), HELD) if any(tmp_path.iterdir()) else []
    assert not (tmp_path / "skipped.tsv").exists()
    assert not [one.row() for one in judged if one.outcome != "pass"]
    lines = census.census(kernels(file), [backend], judged, excused)
    assert not [line for line in lines if line.fails]
    assert all(line.checks == line.launches for line in lines)
    assert backend != "cpu" or all(line.checks >= len(data.KINDS) for line in lines)


def test_excuses_and_bounds_name_kernels_of_the_corpus():
    assert {name for name, _ in EXCUSES} | {entry.kernel for entry in HELD.entries} <= set(every())
    assert {backend for _, backend in EXCUSES} | {entry.backend for entry in HELD.entries} <= {*BACKENDS, "*"}


def test_the_committed_recordings_replay():
    """What `cpu` and `ktpu` gave when they were made is what the reference gives now, of the same kernels."""
    judged = conform(CORPUS / "recorded", every().values(), HELD)
    assert not [one.row() for one in judged if one.outcome != "pass" or "source has changed" in one.detail]
    known = {kernel.name for file in FILES if file.startswith("known_") for kernel in kernels(file)}
    assert {one.kernel for one in judged if one.backend == "cpu"} == known
    assert sum(one.backend == "ktpu" for one in judged) == len(module_of(CORPUS / "record.py").MACHINE)


def test_the_example_runs_is_recorded_and_replays(tmp_path):
    root = Path(__file__).parents[2]
    example = root / "examples/saxpy_xpu.py"
    env = os.environ | {"XPU_RECORD": str(tmp_path), "XPU_BACKEND": "cpu", "PYTHONPATH": str(root)}
    ran = subprocess.run([sys.executable, example], env=env, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ran.stdout == "equal\n"
    assert main(["xpu", "conform", str(tmp_path), "--kernels", str(example)]) == 0
    assert (tmp_path / "conformance.tsv").read_text().splitlines()[1:] == ["saxpy\tcpu\tsaxpy.1\tpass\t"]


# Each planted defect, and the kernels that it must not pass by.
CAUGHT_BY = {
    "dot-activation-sign": ["vector_dot_sum_activations", "vector_dot_accum"],
    "vector-lane-sign": ["vector_lanes", "vector_lane_of_words", "vector_lane_at_run_time"],
    "call-result-sign": ["helper_results"],
    "wave-sum-order": ["wave_reduce_sum_f32", "group_reduce_add", "dot_product", "gemv"],
}


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_a_planted_defect_is_caught_by_the_corpus(data, fault, tmp_path, monkeypatch):
    monkeypatch.setenv("XPU_RECORD", str(tmp_path))
    monkeypatch.setenv("XPU_FAULT", fault or "")
    order = stream(CpuBackEnd())
    chosen = [every()[name] for name in (CAUGHT_BY[fault] if fault else sum(CAUGHT_BY.values(), []))]
    for kernel in chosen:
        for kind in ("random", "ragged"):
            case = data.made(kernel, kind)
            kernel.launch(order, grid=case["grid"], block=case["block"])(*data.buffers(kernel, case["arguments"]))
    monkeypatch.delenv("XPU_FAULT")
    outcomes = {kernel.name: set() for kernel in chosen}
    for one in conform(tmp_path, chosen, HELD):
        outcomes[one.kernel].add(one.outcome)
    expected = {"fail"} if fault else {"pass"}
    assert all(expected <= found for found in outcomes.values()), outcomes
    assert fault or all(found == {"pass"} for found in outcomes.values())


def test_every_kernel_has_launches_and_an_oracle(data):
    families = (
        "integers floats remainder convert math wave workgroup copy "
        "atomic vectors multiply epilogue words elementwise template"
    )
    families = {f"on_{family}" for family in families.split()} | {"on_full_wave"}
    for file in FILES:
        for kernel in kernels(file):
            assert data.made(kernel, "random")["expect"], f"{kernel.name} has no independent answer"
        cases = {name for name in vars(module_of(CORPUS / f"{file}.py")) if name.startswith("on_")}
        assert cases - families == {f"on_{kernel.name}" for kernel in kernels(file)}


def test_an_oracle_that_disagrees_is_seen(data):
    """The harness itself: a kernel that is wrong by one element fails against numpy."""

    class Wrong(ReferenceBackEnd):
        def run(self, request):
            super().run(request)
            request.arguments[0].array.view("uint8")[4] ^= 1

    with pytest.raises(AssertionError, match="saxpy on random data: y"):
        data.launch(every()["saxpy"], "random", stream(Wrong()))


def test_names_are_unique():
    names = [kernel.name for file in FILES for kernel in kernels(file)]
    assert len(names) == len(set(names)) > 250


def test_every_verb_and_every_node_of_the_tree_is_in_a_block():
    """What the corpus does not hold, no replay can judge."""
    verbs, kinds = set(), set()
    for file in [file for file in FILES if file.startswith("blocks_")]:
        for function in [function for kernel in kernels(file) for function in kernel.program.functions]:
            for node in [node for statement in function.body for node in walk(statement)]:
                kinds.add(type(node).__name__)
                verbs |= {node.verb} if isinstance(node, Invoke) else set()
    assert set(VERBS) - verbs == {"thread.clock"}  # which has no reference value
    concrete = {kind.__name__ for base in Node.__subclasses__() for kind in [base, *base.__subclasses__()]}
    missing = concrete - kinds - {"Expression", "Statement", "Function"}
    assert not missing, missing
