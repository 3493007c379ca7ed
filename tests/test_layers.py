"""The layering rule of ARCHITECTURE.md: imports point downward, and some neighbours never meet."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RANK = {
    "wording": -1,
    "formats": 0, "isa": 0, "errata": 0,
    "machine": 1, "lang": 1, "dispatch": 1, "xpu": 1,
    "noc": 2, "reference": 2, "compiler": 2,
    "model": 3,
    "host": 4, "kernels": 4,
    "backends": 5, "conformance": 5, "fuzz": 5, "session": 5, "sweep": 5, "view": 5,
    "cli": 6,
}  # fmt: skip
# Pairs on neighbouring layers that must share nothing but what lies below both.
STRANGERS = {("reference", "compiler"), ("reference", "model"), ("compiler", "model"), ("compiler", "noc"),
             ("reference", "noc"), ("model", "rtl"), ("backends", "reference")}  # fmt: skip


def layer_of(path: Path) -> str:
    part = path.relative_to(ROOT / "kohakutpu").parts[0]
    return part.removesuffix(".py")


def imports(source: str, package: str) -> set[str]:
    """Layers of kohakutpu that a module imports; `package` is its own dotted package, for relative imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ""
            if node.level:
                base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
            stem = ".".join(x for x in (base, node.module or "") if x)
            names = [stem] if stem.count(".") else [f"{stem}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("kohakutpu.")}
    return found


def breaches(layer: str, imported: set[str]) -> list[str]:
    """Why `layer` may not import each of the layers that it may not."""
    wrong = []
    for other in sorted(imported - {layer, "__version__"}):
        if other not in RANK:
            wrong.append(f"{layer} imports {other}, which has no layer")
        elif RANK[other] >= RANK[layer]:
            wrong.append(f"{layer} imports {other}, which is not below it")
        elif (layer, other) in STRANGERS or (other, layer) in STRANGERS:
            wrong.append(f"{layer} and {other} must not know each other")
    return wrong


MODULES = sorted(
    p for p in (ROOT / "kohakutpu").rglob("*.py") if p.parent != ROOT / "kohakutpu" or p.stem != "__init__"
)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downward(path):
    layer = layer_of(path)
    assert layer in RANK, f"{path} belongs to no layer"
    package = ".".join(path.relative_to(ROOT).parts[:-1])
    assert not breaches(layer, imports(path.read_text(), package))


RTL_MAY_READ = {"formats", "isa", "machine"}


@pytest.mark.parametrize("path", sorted((ROOT / "rtl").glob("*.py")), ids=lambda p: p.name)
def test_the_gates_know_no_model(path):
    """RTL reads encodings, tables and machine descriptions; what checks it must not have made it."""
    assert imports(path.read_text(), "rtl") - {"__version__"} <= RTL_MAY_READ


@pytest.mark.parametrize(
    "layer, source, reason",
    [
        ("reference", "from kohakutpu.compiler import plan", "not below"),
        ("reference", "from ..compiler.plan import deal", "not below"),
        ("model", "import kohakutpu.host.loader", "not below"),
        ("model", "from kohakutpu import compiler", "must not know"),
        ("isa", "from kohakutpu.lang import kernel", "not below"),
        ("cli", "from kohakutpu import unheard_of", "no layer"),
    ],
)
def test_a_breach_is_seen(layer, source, reason):
    found = breaches(layer, imports(source, f"kohakutpu.{layer}"))
    assert len(found) == 1 and reason in found[0]
