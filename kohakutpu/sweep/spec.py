"""A sweep's description: strict YAML to the list of its points (`docs/sweep.md`)."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kohakutpu.compiler import CONSTANTS, LOWERINGS
from kohakutpu.lang.extents import names_in, resolve
from kohakutpu.lang.kernel import Kernel
from kohakutpu.lang.kernel import load as load_kernel
from kohakutpu.machine import Machine, MachineError, to_yaml
from kohakutpu.machine import load as load_machine
from kohakutpu.machine.strict_yaml import Document, Node
from kohakutpu.model import faults as model_faults
from kohakutpu.wording import counted

from .point import Point, text_digest

ENGINES = ("model", "rtl")
SIMULATORS = ("verilator", "icarus")
KEYS = ("name", "kernel", "machines", "shapes", "extents", "knobs", "seeds", "engines", "simulator", "faults", "timeout",
        "lowering", "constants", "preq")  # fmt: skip
MOST_POINTS = 100_000
MOST_ELEMENTS = 1 << 24  # of one operand
MOST_EXTENT = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_INTEGER = re.compile(r"-?\d+")


class SpecError(ValueError):
    """A sweep that cannot be read: file, line and column, what was given and what was expected."""


@dataclass(frozen=True)
class Sweep:
    """A checked description; `points` in the order of the file: machines, shapes, knobs, engines, seeds, last
    fastest."""

    name: str
    points: tuple[Point, ...]

    @property
    def gates(self) -> bool:
        """Whether any point needs the RTL."""
        return any(point.engine == "rtl" for point in self.points)


def read(path: Path, *, code: Callable[[bool], str] = lambda gates: "") -> Sweep:
    """The sweep that a file describes; `code` gives the digest of the program, with or without gates: part of each
    point's identity.

    Raises `SpecError` for anything that the file may not say, and what `lang.kernel.load` and `machine.load` raise.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot read the sweep {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text") from error
    try:
        return _Reader(Document(text, str(path), "sweep"), path.parent).sweep(code)
    except MachineError as error:
        raise SpecError(str(error)) from error


class _Reader:
    def __init__(self, document: Document, folder: Path):
        self.document = document
        self.folder = folder
        self.keys = document.mapping(document.root, KEYS, "the sweep")

    def sweep(self, code: Callable[[bool], str]) -> Sweep:
        document = self.document
        name = document.word(self._needed("name"), "name")
        if not _NAME.fullmatch(name):
            document.refuse(self.keys["name"], f"name {name!r}: letters, digits and _ . + -")
        node = self._needed("kernel")
        reference = document.word(node, "kernel")
        where, _, function = reference.rpartition(":")
        if where.endswith(".py"):
            reference = f"{(self.folder / where)}:{function}"
        kernel = load_kernel(reference)
        source = Path(kernel.source.file).read_text()
        engines = self._words("engines", ENGINES, ["model"])
        faults = tuple(self._words("faults", list(model_faults.table()), []))
        if faults and "rtl" in engines:
            document.refuse(self.keys["faults"], "faults are of the models: they do not go with the engine rtl")
        timeout = None
        if "timeout" in self.keys:
            timeout = document.integer(self.keys["timeout"], "timeout")
            if timeout < 1:
                document.refuse(self.keys["timeout"], f"timeout is at least one cycle, not {timeout}")
        common = {
            "kernel": f"{Path(where).name}:{function}" if where.endswith(".py") else reference,
            "kernel_text": source if where.endswith(".py") else None,
            "kernel_digest": text_digest(source),
            "faults": faults,
            "timeout": timeout,
            "simulator": self._word("simulator", SIMULATORS),
            "lowering": self._word("lowering", LOWERINGS),
            "constants": self._word("constants", CONSTANTS),
            "preq": tuple(self._words("preq", [port.name for port in kernel.inputs], [])),
        }
        codes = {engine: code(engine == "rtl") for engine in engines}
        machines = [(machine.name, to_yaml(machine)) for machine in self._machines()]
        axes = (machines, self._shapes(kernel), self._knobs(kernel), engines, self._seeds())
        count = math.prod(map(len, axes))
        if count > MOST_POINTS:
            document.refuse(document.root, f"{counted(count, 'point', form=',')}; a sweep has at most {MOST_POINTS:,}")
        points = tuple(
            Point(machine=machine, machine_yaml=text, shapes=shapes, knobs=knobs, engine=engine, seed=seed,
                  code=codes[engine], **common)  # fmt: skip
            for (machine, text), shapes, knobs, engine, seed in itertools.product(*axes)
        )
        return Sweep(name, points)

    def _needed(self, key: str) -> Node:
        if key not in self.keys:
            self.document.refuse(self.document.root, f"the sweep has no {key}")
        return self.keys[key]

    def _list(self, node: Node, what: str) -> list[Node]:
        items = self.document.sequence(node, what)
        if not items:
            self.document.refuse(node, f"{what} is an empty list: the sweep would have no point")
        return items

    def _distinct(self, nodes: list[Node], values: list, what: str) -> list:
        seen = set()
        for node, value in zip(nodes, values, strict=True):
            if (type(value), value) in seen:
                self.document.refuse(node, f"{what} names {value} twice: its points would be the same")
            seen.add((type(value), value))
        return values

    def _word(self, key: str, known: tuple[str, ...]) -> str:
        if key not in self.keys:
            return known[0]
        word = self.document.word(self.keys[key], key)
        if word not in known:
            self.document.refuse(self.keys[key], f"{key} is {' or '.join(known)}, not {word!r}")
        return word

    def _words(self, key: str, known, default: list[str]) -> list[str]:
        if key not in self.keys:
            return default
        nodes = self._list(self.keys[key], key)
        words = [self.document.word(node, f"an entry of {key}") for node in nodes]
        for node, word in zip(nodes, words, strict=True):
            if word not in known:
                self.document.refuse(node, f"{key} has {word!r}; there are {', '.join(known)}")
        return self._distinct(nodes, words, key)

    def _machines(self) -> list[Machine]:
        nodes = self._list(self._needed("machines"), "machines")
        machines = []
        for node in nodes:
            given = self.document.word(node, "a machine")
            path = Path(given)
            found = load_machine(self.folder / path if path.suffix in (".yaml", ".yml", ".map") else given)
            found.require_mesh()
            machines.append(found)
        self._distinct(nodes, [machine.name for machine in machines], "machines")
        return machines

    # ---- shapes ------------------------------------------------------------------------------------

    def _shapes(self, kernel: Kernel) -> list[tuple]:
        """((operand, shape), ..) for each entry, in the order of the kernel's operands."""
        if ("shapes" in self.keys) == ("extents" in self.keys):
            self.document.refuse(self.document.root, "the sweep has either shapes or extents: the operands' sizes")
        nodes, found = self._listed(kernel) if "shapes" in self.keys else self._product(kernel)
        for node, shapes in zip(nodes, found, strict=True):
            kernel.solve(dict(shapes))
            for name, shape in shapes:
                if math.prod(shape) > MOST_ELEMENTS:
                    self.document.refuse(
                        node, f"{name} of shape {shape}: an operand has at most {MOST_ELEMENTS:,} elements"
                    )
        return self._distinct(nodes, found, "shapes")

    def _listed(self, kernel: Kernel) -> tuple[list[Node], list[tuple]]:
        names = [port.name for port in kernel.inputs]
        nodes, found = self._list(self.keys["shapes"], "shapes"), []
        for node in nodes:
            given = self.document.mapping(node, names, f"shapes of {kernel.name}")
            missing = [name for name in names if name not in given]
            if missing:
                self.document.refuse(node, f"no shape for {', '.join(missing)} of {kernel.name}")
            found.append(tuple((name, self._extents(given[name], f"the shape of {name}")) for name in names))
        return nodes, found

    def _product(self, kernel: Kernel) -> tuple[list[Node], list[tuple]]:
        if any(port.whole for port in kernel.inputs):
            self.document.refuse(self.keys["extents"], f"{kernel.name} takes whole arrays of any shape: give shapes")
        declared = [extent for port in kernel.inputs for extent in port.shape if not isinstance(extent, int)]
        dims = sorted(set().union(*map(names_in, declared)))
        given = self.document.mapping(self.keys["extents"], dims, f"extents of {kernel.name}")
        missing = [name for name in dims if name not in given]
        if missing:
            self.document.refuse(self.keys["extents"], f"no values for {', '.join(missing)} of {kernel.name}")
        values = []
        for name in dims:
            extents = list(self._extents(given[name], f"extent {name}"))
            values.append(self._distinct(self.document.sequence(given[name], name), extents, f"extent {name}"))
        found = []
        for choice in itertools.product(*values):
            known = dict(zip(dims, choice, strict=True))
            found.append(
                tuple(
                    (
                        port.name,
                        tuple(extent if isinstance(extent, int) else resolve(extent, known) for extent in port.shape),
                    )
                    for port in kernel.inputs
                )
            )
        return [self.keys["extents"]] * len(found), found

    def _extents(self, node: Node, what: str) -> tuple[int, ...]:
        items = self._list(node, what)
        values = tuple(self.document.integer(item, what) for item in items)
        for item, value in zip(items, values, strict=True):
            if not 1 <= value <= MOST_EXTENT:
                self.document.refuse(item, f"{what} has {value}; 1 to {MOST_EXTENT:,} is expected")
        return values

    # ---- knobs and seeds ---------------------------------------------------------------------------

    def _knobs(self, kernel: Kernel) -> list[tuple]:
        """((knob, value), ..) for each combination."""
        if "knobs" not in self.keys:
            return [()]
        given = self.document.mapping(self.keys["knobs"], list(kernel.settings({})), f"knobs of {kernel.name}")
        axes = []
        for name, node in given.items():
            items = self._list(node, f"knob {name}")
            values = [self._value(item, f"knob {name}") for item in items]
            axes.append([(name, value) for value in self._distinct(items, values, f"knob {name}")])
        return list(itertools.product(*axes))

    def _value(self, node: Node, what: str) -> int | float | bool | str:
        """true, false, a plain decimal integer, a decimal fraction, or a word."""
        text, style = getattr(node, "value", None), getattr(node, "style", None)
        if isinstance(text, str) and style is None:
            if text in ("true", "false"):
                return self.document.boolean(node, what)
            if _INTEGER.fullmatch(text):
                return self.document.integer(node, what)
            if re.fullmatch(r"-?(0|[1-9]\d*)\.\d+", text):
                return float(text)
        return self.document.word(node, what)

    def _seeds(self) -> list[int]:
        if "seeds" not in self.keys:
            return [0]
        node = self.keys["seeds"]
        if self.document.is_sequence(node):
            items = self._list(node, "seeds")
            seeds = [self.document.integer(item, "a seed") for item in items]
            for item, seed in zip(items, seeds, strict=True):
                if seed < 0:
                    self.document.refuse(item, f"a seed is not negative: {seed}")
            return self._distinct(items, seeds, "seeds")
        bounds = self.document.mapping(node, ("first", "last"), "seeds")
        if len(bounds) < 2:
            self.document.refuse(node, "seeds are a list, or a mapping of first and last")
        first, last = (self.document.integer(bounds[key], f"seeds' {key}") for key in ("first", "last"))
        if not 0 <= first <= last < first + MOST_POINTS:
            self.document.refuse(
                node, f"seeds {first} to {last}: 0 <= first <= last, and at most {MOST_POINTS:,} of them"
            )
        return list(range(first, last + 1))
