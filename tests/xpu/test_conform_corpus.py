"""The corpus: a kernel for every block of the language, and kernels that people know.

Each runs on random, ragged and adversarial data, is held against numpy where numpy has an answer, is recorded from
every back end, and is replayed.
"""

from functools import cache
from pathlib import Path

import pytest

from kohakutpu.conformance.xpu.load import load, module_of
from kohakutpu.reference.xpu import ReferenceBackEnd
from kohakutpu.xpu import KernelStream
from kohakutpu.xpu.launch import Runtime
from kohakutpu.xpu.tree import Invoke, Node, walk
from kohakutpu.xpu.verbs import VERBS

CORPUS = Path(__file__).parent / "corpus"
FILES = sorted(path.stem for path in CORPUS.glob("*.py") if path.stem.startswith(("blocks_", "known_")))


@pytest.fixture(scope="session")
def data():
    """The module that makes launches."""
    return module_of(CORPUS / "data.py")


@cache
def kernels(file: str) -> list:
    """The kernels of a file of the corpus."""
    return load([str(CORPUS / f"{file}.py")])


def stream(backend) -> KernelStream:
    runtime = Runtime()
    runtime.register(backend)
    return KernelStream(runtime)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", ["random", "ragged", "adversarial"])
def test_the_reference_agrees_with_numpy(data, file, kind):
    order = stream(ReferenceBackEnd())
    assert kind in data.KINDS
    for kernel in kernels(file):
        data.launch(kernel, kind, order)


def test_every_kernel_has_launches_and_an_oracle(data):
    for file in FILES:
        for kernel in kernels(file):
            assert data.made(kernel, "random")["expect"], f"{kernel.name} has no independent answer"
        cases = {name for name in vars(module_of(CORPUS / f"{file}.py")) if name.startswith("on_")}
        helpers = {"on_integers", "on_floats", "on_remainder", "on_convert", "on_math", "on_wave", "on_workgroup", "on_copy",
                   "on_atomic", "on_vectors", "on_multiply", "on_epilogue", "on_words"}  # fmt: skip
        assert cases - helpers == {f"on_{kernel.name}" for kernel in kernels(file)}


def test_names_are_unique():
    names = [kernel.name for file in FILES for kernel in kernels(file)]
    assert len(names) == len(set(names)) > 200


def nodes_of(file: str):
    for kernel in kernels(file):
        for function in kernel.program.functions:
            for statement in function.body:
                yield from walk(statement)


def test_every_verb_and_every_node_of_the_tree_is_in_a_block():
    """What the corpus does not hold, no replay can judge."""
    verbs, kinds = set(), set()
    for file in FILES:
        if file.startswith("blocks_"):
            for node in nodes_of(file):
                kinds.add(type(node).__name__)
                if isinstance(node, Invoke):
                    verbs.add(node.verb)
    assert set(VERBS) - verbs == {"thread.clock"}  # which has no reference value
    concrete = {kind.__name__ for base in Node.__subclasses__() for kind in [base, *base.__subclasses__()]}
    missing = concrete - kinds - {"Expression", "Statement", "Function"}
    assert not missing, missing
