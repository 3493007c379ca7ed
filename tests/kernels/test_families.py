"""Every kernel of the library on every machine; and with any shape, knobs and options: byte-equal, or refused by name when compiled."""

import dataclasses
import re
import sys
import zlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from kohakutpu.compiler import CONSTANTS, LOWERINGS, RELAYOUTS, Options, compile_kernel, settle
from kohakutpu.compiler.layouts import Entry, Flat, Rows, Tile
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.lang import Extents, KernelError
from kohakutpu.lang.kernel import RESERVED
from kohakutpu.machine import load

sys.path.insert(0, str(Path(__file__).parent))
from running import LIBRARY, VECTOR, dims_of, equal_bytes, operands_of, small_case  # noqa: E402

MACHINES = ["mm_mesh", "quad", "ship_3x2", "2x1_6+0", "uneven", "1x1_2+2"]
LONGEST = 200_000  # cycles of a wait, far beyond the longest example; one that waits for ever ends there

lengths = st.one_of(st.integers(1, 9), st.integers(1, 72), st.sampled_from([32, 64, 128]))
seldom = st.sampled_from([True, *[False] * 5])
groups = st.one_of(st.integers(1, 5), st.integers(1, 5), st.sampled_from([8, 16, "auto"]))
numbers = st.one_of(st.sampled_from([1.0, -0.3, 0, 2, 1e-3, 70000.0]), st.floats(-4, 4, width=16))
KNOBS = {
    "gm": groups, "gn": groups, "nk": groups, "fuse": st.booleans(), "part": st.sampled_from([1, 16, 100, 640, 1024, 8192]),
    "act": st.sampled_from(["relu", "silu", "gelu"]), "s": numbers, "eps": st.sampled_from([0, 1e-5, 1e-3, 1.0]),
    "scale": st.one_of(st.none(), numbers), "causal": st.booleans(), "period": st.one_of(st.none(), st.integers(1, 20)),
    "keys": st.one_of(st.none(), st.integers(1, 80)), "block": st.sampled_from([32, 64, 64, 96]),
    "ksplit": st.sampled_from([*[1] * 12, 2, 3]),
}  # fmt: skip
ALWAYS = {"block", "causal", "gm", "gn", "nk"}  # what an example always says; each of the others in about half of them
ODD_GROUPS = [0, -1, 2.5, 300, 10**9, True, "many"]
ODD = {  # what one of eight examples has somewhere
    "gm": ODD_GROUPS, "gn": ODD_GROUPS, "nk": ODD_GROUPS, "fuse": [1, None], "part": [0, -16, 10**9, 1.0], "act": [None, "tanh", 3],
    "s": [1e-40, float("inf"), float("nan"), 1e39, None], "eps": [-1.0, 1e-40, float("nan"), "x"], "scale": [0, float("inf"), 1e-40],
    "causal": [None, 2], "period": [0, -1, 10**6], "keys": [0, -1, 10**6, 2.5], "block": [0, 40, 31, -32, 1 << 20],
    "ksplit": [0, -1, 2.5, 9, 10**9, True, "many"],
}  # fmt: skip


def layout_for(draw, shape):
    """A byte order in which an operand of this shape may lie."""
    flat = [Flat(shape), Rows(shape)]
    if len(shape) != 2:
        return draw(st.sampled_from(flat))
    gm, gn = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 5, 8, 8, 16]))
    return draw(st.sampled_from([*flat, Tile(*shape, gm, gn), Tile(*shape, gm, gn), Entry(*shape, gm, 1), Entry(*shape, gm, 2)]))


@st.composite
def options_for(draw, kernel, extents, odd):
    """Options for a kernel; with `odd` some that no kernel takes."""
    names = [*kernel.ports, "none"] if odd else [port.name for port in kernel.inputs]
    preq = draw(st.lists(st.sampled_from(names[:2] + names), max_size=2, unique=True)) if draw(seldom) else ()
    placed = draw(st.lists(st.sampled_from(names), max_size=2, unique=True)) if draw(seldom) else ()
    steps = st.one_of(st.integers(0, 40).map(lambda n: n * 4096), st.integers(0, 4000).map(lambda n: n * 512))
    places = st.one_of(steps, st.integers(-9, 9), st.integers(0, 1 << 40)) if odd else steps
    held = draw(st.sampled_from(kernel.inputs)).element_shape(extents) if draw(seldom) else None
    alike = [port.name for port in kernel.inputs if port.element_shape(extents) == held]
    drawn = {
        "lowering": draw(st.sampled_from(LOWERINGS[:1] if preq else (*LOWERINGS, *LOWERINGS[:1] * 2))),
        "constants": draw(st.sampled_from(CONSTANTS)), "relayout": draw(st.sampled_from(RELAYOUTS)),
        "bands": draw(st.booleans()), "preq": tuple(preq),
        "addresses": {name: draw(places) for name in placed}, "allow_overlap": False,
        "layouts": dict.fromkeys(alike, layout_for(draw, held)) if alike else {},
        "ksplit": draw(st.sampled_from([*[None] * 12, "auto", 2])),
    }  # fmt: skip
    assert drawn.keys() == {field.name for field in dataclasses.fields(Options)}, "an option that no example varies"
    return Options(**drawn)


@st.composite
def calls(draw, kernel):
    """(machine, shapes, knobs, options) for a kernel."""
    odd = draw(st.integers(0, 7)) == 7
    knobs = {}
    for name in sorted(kernel.knobs.keys() | RESERVED):
        if name in KNOBS and (name in ALWAYS or draw(st.booleans())):
            knobs[name] = draw(KNOBS[name])
    dims = {name: draw(lengths) for name in dims_of(kernel)}
    lead = tuple(draw(st.lists(st.integers(1, 3), max_size=2 if kernel.name in VECTOR else 1)))
    if any(port.whole for port in kernel.inputs):
        lead = (*lead, draw(lengths), draw(lengths))[draw(st.integers(0, 2)):]
    if "H" in dims:
        dims |= {"H": draw(st.integers(1, 7)), "W": draw(st.integers(1, 7)), "C": draw(st.sampled_from([3, 31, 32, 64, 70])),
                 "N": draw(st.integers(1, 24))}  # fmt: skip
    if "keys" in kernel.knobs and draw(st.booleans()):
        dims["K"] = 32 * draw(st.integers(1, 4))  # most other numbers of keys are refused
    if odd and knobs:
        name = draw(st.sampled_from(sorted(knobs)))
        knobs[name] = draw(st.sampled_from(ODD[name]))
    extents = Extents(dims, lead)
    shapes = {port.name: port.logical_shape(extents) for port in kernel.inputs}
    return load(draw(st.sampled_from(MACHINES))), shapes, knobs, draw(options_for(kernel, kernel.solve(shapes), odd))


def check(kernel, machine, shapes, knobs, options, artifact, specials):
    operands = operands_of(shapes, seed=3, specials=specials)
    got = run_model(artifact, machine, operands, timeout=LONGEST).run.outputs
    wanted = run_reference(kernel, knobs, operands, machine, constants=options.constants).outputs
    assert wanted and all((got[name].view("u2") == wanted[name].view("u2")).all() for name in wanted)


def examine(kernel, examples) -> Counter:
    """That many calls; how many of them ran, and with what."""
    ran = Counter()

    @seed(zlib.crc32(kernel.name.encode()))  # other calls for each kernel, the same in every run
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(calls(kernel), st.sampled_from([0.0, 0.0, 0.03]))
    def each(call, specials):
        machine, shapes, knobs, options = call
        try:
            knobs = settle(kernel, machine, shapes, knobs, options)
            artifact = compile_kernel(kernel, machine, shapes, knobs, options)
        except KernelError as error:
            ran["refused"] += 1
            assert error.message and not re.match(r"\w+Error: ", error.message), "an error of Python's, not a refusal"
            return
        check(kernel, machine, shapes, knobs, options, artifact, specials)
        ran.update(["ran", options.lowering, options.constants, options.relayout, machine.name])
        ran.update(["layouts"] * bool(options.layouts))
        ran.update(["preq"] * bool(options.preq) + ["addresses"] * bool(options.addresses))

    each()
    return ran


@pytest.mark.parametrize("machine", ["mm_mesh", "quad", "ship_3x2"])
@pytest.mark.parametrize("name", LIBRARY)
def test_every_kernel_on_every_machine(name, machine):
    """All of the library fits the smallest of these machines; nothing is left out."""
    shapes, knobs = small_case(LIBRARY[name])
    equal_bytes(LIBRARY[name], shapes, machine, knobs, specials=0.02)


def test_every_knob_of_the_library_varies():
    held = {name for made in LIBRARY.values() for name in made.knobs} | RESERVED.keys()
    assert held == KNOBS.keys() == ODD.keys()


@pytest.mark.parametrize("name", LIBRARY)
def test_some_calls_of_every_family(name):
    examine(LIBRARY[name], 6)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LIBRARY)
def test_calls_of_every_family(name):
    ran = examine(LIBRARY[name], 300)
    print(f"\n{name}: {', '.join(f'{count} {what}' for what, count in ran.items())}")
    assert ran["ran"] > 20, "hardly anything ran"
