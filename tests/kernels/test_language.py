"""Every line of the language's tables in docs/kernels.md has a kernel in examples/language.py or a case here; each has the
interpreter's bytes on the models."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from kohakutpu import lang
from kohakutpu.compiler import Options, compile_kernel
from kohakutpu.compiler.layouts import Tile
from kohakutpu.host.compare import digest
from kohakutpu.host.simulate import run_reference
from kohakutpu.kernels import linear_silu, mlp
from kohakutpu.kernels.elementwise import add
from kohakutpu.lang import Extents, dims, kernel, load, units
from kohakutpu.lang import loop as looped
from kohakutpu.lang.kernel import Kernel
from kohakutpu.machine import load as load_machine

sys.path.insert(0, str(Path(__file__).parent))
from running import dims_of, equal_bytes, operands_of  # noqa: E402

ROOT = Path(__file__).parents[2]
EXAMPLES = vars(sys.modules[load(f"{ROOT}/examples/language.py:tiled").__wrapped__.__module__])
KERNELS = {name: value for name, value in EXAMPLES.items() if isinstance(value, Kernel)}
EXTENTS = {"M": 13, "K": 70, "N": 24, "H": 4, "W": 5, "C": 40}
PAGE = (ROOT / "docs" / "kernels.md").read_text()


def lines_of(header: str) -> list[str]:
    """The first cell of every line of the table with that header."""
    (table,) = re.findall(rf"^{re.escape(header)}\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.M)
    return [re.match(r"\| (.*?) \|", line).group(1) for line in table.splitlines()]


CONSTRUCTS = [*lines_of("| written | meaning |"), *lines_of("| view | |"), *lines_of("| written | operations |")]


def quoted(made: Kernel) -> list[str]:
    """The lines that a kernel's docstring quotes; `, outside units` and the like say which form of one."""
    lines = (line.strip() for line in made.__doc__.splitlines() if line.strip())
    return [line if line in CONSTRUCTS else re.match(r"`[^`]*`", line).group(0) for line in lines]


def test_every_line_of_the_tables_has_a_kernel_and_every_kernel_a_line():
    shown = {line for made in KERNELS.values() for line in quoted(made)}
    knobs = lines_of("| knob | |")
    assert not set(CONSTRUCTS) - shown, "lines without a kernel in examples/language.py"
    assert not shown - set(CONSTRUCTS) - set(knobs), "quoted, and in no table"


NOT_IN_BODIES = {"Extents", "Kernel", "KernelError", "Source", "Trace", "load", "resolve"}


def test_every_name_of_the_language_is_on_the_page_and_in_a_kernel():
    source = (ROOT / "examples" / "language.py").read_text()
    section = PAGE.split("## Writing a kernel")[1].split("## What a kernel means")[0]
    for name in set(lang.__all__) - NOT_IN_BODIES:
        assert re.search(rf"\b{name}\b", section), f"{name} is not described"
        assert re.search(rf"\b{name}\b", source), f"{name} is in no kernel"


def shapes_of(made: Kernel, lead: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    whole = any(port.whole for port in made.inputs)
    extents = Extents({name: EXTENTS[name] for name in dims_of(made)}, (9, 14) if whole else lead)
    return {port.name: port.logical_shape(extents) for port in made.inputs}


@pytest.mark.parametrize("machine, lead", [("mm_mesh", ()), ("quad", (2,)), ("ship_3x2", (3, 1))])
@pytest.mark.parametrize("name", KERNELS)
def test_equal_to_the_interpreter(name, machine, lead):
    equal_bytes(KERNELS[name], shapes_of(KERNELS[name], lead), machine, specials=0.02)


# ---- together --------------------------------------------------------------------------------------------

M, K, N = dims("M, K, N")


@kernel
def everything(x=lang.In(..., M, K), w=lang.In(N, K), b=lang.In(N), c=lang.In(N), y=lang.Out(..., M, N), *, gm=4,
               gn=6, act="silu", fuse=True):  # fmt: skip
    """Regions in a nested tiling in a loop of stages; a fused end, per channel, with a table; rows with a mask."""
    t, total = lang.temp(M, N), lang.temp(M, N)
    total <<= 0.0
    column = lang.column_index(N)
    for s in looped(2):
        with units(x.tiles(gm)) as i:
            with units(w.tiles(gn)) as j:
                acc, p, q = lang.tile(gm, gn, 1), lang.region(gm, 1), lang.region(gn, 1)
                for k in looped(x.chunks32(1)):
                    p <<= x[i, k]
                    q <<= w[j, k]
                    acc += p @ q
                value = getattr(lang, act)(lang.fma(acc, 0.5, b[j]))
                if not fuse:  # a core fills one per-channel operand of a fused end
                    table = lang.table(np.linspace(0.5, 2, 24))
                    value = value * table[table.tiles(gn).at(j)]
                t[i, j] <<= value
        masked = lang.where(lang.less(column, 20 - s), t, -60000.0)
        total <<= total + lang.exp2(masked - lang.row_max(masked)) * (s + 1)
    best = lang.row_max(total)
    y <<= lang.where(lang.equal(total, best), total / lang.row_sum(total), total * c)


@pytest.mark.parametrize("machine, lead", [("mm_mesh", ()), ("quad", (3,)), ("ship_3x2", (2,))])
@pytest.mark.parametrize("fuse", [True, False])
def test_constructs_inside_each_other(machine, lead, fuse):
    shapes = {"x": (*lead, 13, 70), "w": (24, 70), "b": (24,), "c": (24,)}
    artifact, _ = equal_bytes(everything, shapes, machine, {"fuse": fuse, "act": "gelu"}, Options(relayout="machine"))
    assert any(image.name.startswith("land") for image in artifact.buffers) != fuse


# ---- options and reserved knobs --------------------------------------------------------------------------

X = {"x": (13, 70), "w": (24, 70)}
TILE = {"gm": 4, "gn": 6, "nk": 1}
MLP = {"x": (8, 64), "up": (64, 64), "down": (32, 64)}
SETTINGS = {
    "`lowering`": (linear_silu, X, TILE, Options(lowering="published")),
    "`constants`": (linear_silu, X, TILE | {"fuse": False}, Options(constants="arrays")),
    "`preq`": (linear_silu, X, TILE, Options(preq=("x", "w"))),
    "`relayout`": (mlp, MLP, {"gm": 2, "gn": 8}, Options(relayout="host")),
    "`layouts`": (KERNELS["functions"], {"x": (13, 24)}, {}, Options(layouts={"x": Tile(13, 24, 2, 3)})),
    "`bands`": (KERNELS["activations"], {"x": (13, 24)}, {}, Options(bands=False)),
    "`ksplit`": (linear_silu, X, TILE, Options(ksplit=2)),
    "`addresses`": (linear_silu, X, TILE, Options(addresses={"w": 0x10000})),
    "`allow_overlap`": (linear_silu, X, TILE, Options(addresses={"x": 0x1000, "y": 0x9000}, allow_overlap=True)),
    "`fuse=False`": (linear_silu, X, TILE | {"fuse": False}, Options()),
    "`part=8192`": (add, {"a": (3000,), "b": (3000,)}, {"part": 1024}, Options()),
    "`ksplit=1`": (linear_silu, X, TILE | {"ksplit": 3}, Options()),
}


def test_every_option_and_reserved_knob_has_a_case():
    assert set(SETTINGS) == {*lines_of("| option | values | |"), *lines_of("| knob | |")}


@pytest.mark.parametrize("name", SETTINGS)
def test_equal_under_every_option(name):
    made, shapes, knobs, options = SETTINGS[name]
    knobs = {**knobs, "ksplit": options.ksplit} if options.ksplit else knobs
    artifact, _ = equal_bytes(made, shapes, "quad", knobs, options)
    plain = compile_kernel(made, load_machine("quad"), shapes, {k: v for k, v in knobs.items() if k in TILE})
    assert artifact.to_dict() != plain.to_dict(), "the option changes something of the compiled kernel"


def test_only_what_the_page_says_changes_values():
    """`constants` and `ksplit`; the others of these are the same bits."""
    made, _, knobs, _ = SETTINGS["`constants`"]
    operands = operands_of({"x": (13, 200), "w": (24, 200)})
    machine = load_machine("quad")
    bits = digest(run_reference(made, TILE, operands, machine).outputs["y"])
    assert digest(run_reference(made, knobs, operands, machine, constants="arrays").outputs["y"]) != bits
    assert digest(run_reference(made, TILE | {"ksplit": 3}, operands, machine).outputs["y"]) != bits
    assert digest(run_reference(made, TILE | {"fuse": False, "part": 64}, operands, machine).outputs["y"]) == bits
