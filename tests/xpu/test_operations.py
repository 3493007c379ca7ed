"""The corpus by operation and type: nothing that the language has is without a kernel, and docs/xpu_census.md counts
them.

`python tests/xpu/test_operations.py` writes the page.
"""

from collections import defaultdict
from pathlib import Path

from kohakutpu.conformance.xpu.census import load_excuses
from kohakutpu.conformance.xpu.load import load
from kohakutpu.conformance.xpu.operations import counted, operations, universe
from kohakutpu.xpu.verbs import VERBS

CORPUS = Path(__file__).parent / "corpus"
PAGE = Path(__file__).parents[2] / "docs/xpu_census.md"
TYPES = ("bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64", "")
HEAD = """# The corpus of XPU kernels, by operation

How many kernels of `tests/xpu/corpus` exercise an operation on a type, and are value-checked: against numpy and on `cpu`,
and on `ktpu` those that `excuses.tsv` does not name. A conversion's type is the source's, a comparison's that of its
operands, a built-in's that of its first argument where its result says nothing. Written by
`python tests/xpu/test_operations.py`, which also holds that no operator, conversion or access lacks a kernel on any type.

"""


def kernels() -> list:
    """Every kernel of the corpus that can be launched."""
    files = sorted(path for path in CORPUS.glob("*.py") if path.stem.startswith(("blocks_", "known_")))
    return [kernel for kernel in load(map(str, files)) if not kernel.is_template]


def cell(numbers: dict[str, int]) -> str:
    """Counts by type, those without a type alone."""
    return ", ".join(f"{kind} {numbers[kind]}".strip() for kind in TYPES if numbers.get(kind)) or "-"


def page() -> str:
    """The page's text."""
    excused = load_excuses(CORPUS / "excuses.tsv")
    rows: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: {"cpu": {}, "ktpu": {}})
    for (name, kind), users in counted(kernels()).items():
        for backend, numbers in rows[name].items():
            numbers[kind] = sum((user, backend) not in excused for user in users)
    lines = [f"| {name} | {cell(row['cpu'])} | {cell(row['ktpu'])} |" for name, row in sorted(rows.items())]
    return HEAD + "\n".join(["| operation | `cpu` | `ktpu` |", "|---|---|---|", *lines]) + "\n"


def test_no_operation_lacks_a_kernel_on_any_type():
    found = counted(kernels())
    assert not universe() - set(found), sorted(universe() - set(found))
    assert set(VERBS) - {name for name, _ in found} == {"thread.clock"}  # which has no value
    assert {kind for _, kind in found} == set(TYPES)


def test_what_a_kernel_exercises(body_of):
    declared = body_of("i = thread.x()\ns = Shared[f32](16)\ns[i] = f32(a[i]) + 1.5\nif i < 3:\n    out[i] = a[i] << 2",
                       "out: KernelBuffer[i32], a: KernelBuffer[i32]")  # fmt: skip
    assert operations(declared) == {
        ("thread.x", "u32"), ("store to Shared", "f32"), ("convert to f32", "i32"), ("load from buffer", "i32"),
        ("add", "f64"), ("convert to f64", "f32"), ("convert to f32", "f64"), ("if", ""), ("lt", "u32"),
        ("store to buffer", "i32"), ("shl", "i32"),
    }  # fmt: skip


def test_the_page_holds_the_counts():
    assert PAGE.read_text().splitlines() == page().splitlines(), "run python tests/xpu/test_operations.py"


if __name__ == "__main__":
    PAGE.write_text(page())
