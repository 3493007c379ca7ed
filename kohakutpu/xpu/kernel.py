"""`@kernel`, `@device` and the annotations of a kernel (spec/xpu.md 1.1, 1.5, 1.6)."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType as PythonFunction

from .constants import evaluate, failing_clause
from .errors import DeclarationError, HostUse
from .program import Program, build, definition_of

BACKENDS = ("cpu", "nvptx", "amdgpu", "vulkan", "ktpu")
WIDEST_WAVE = 64


class Annotation:
    """A decorator that says something of a kernel, above or below `@kernel`."""

    def __call__(self, target):
        if isinstance(target, Kernel):
            target.annotate(self)
        elif isinstance(target, PythonFunction):
            target.__dict__.setdefault("xpu_annotations", []).append(self)
        else:
            raise DeclarationError(f"@{type(self).__name__} belongs on a kernel, not on {target!r}")
        return target


def _text(value, what: str) -> None:
    if not isinstance(value, str) or not value:
        raise DeclarationError(f"{what}: expected the plan item's name as text, not {value!r}")


@dataclass(frozen=True)
class Wave(Annotation):
    """The body assumes exactly `width` lanes."""

    width: int

    def __post_init__(self):
        if type(self.width) is not int or self.width not in (1, 2, 4, 8, 16, 32, WIDEST_WAVE):
            raise DeclarationError(f"Wave(width={self.width!r}): a power of two from 1 to {WIDEST_WAVE} is expected")


@dataclass(frozen=True)
class Occupancy(Annotation):
    """The ceiling of the block and pins; each an integer, or text: integer arithmetic over template values."""

    max_threads: int | str | None = None
    max_waves: int | str | None = None
    min_resident: int | str | None = None
    max_registers: int | str | None = None

    def __post_init__(self):
        if self.max_threads is not None and self.max_waves is not None:
            raise DeclarationError("Occupancy: max_threads and max_waves are one bound in two units; declare one")


@dataclass(frozen=True)
class FastMath(Annotation):
    """A back end may reassociate, contract and flush subnormals; conformance then needs a `rel` bound."""


@dataclass(frozen=True)
class Backend(Annotation):
    """Restricts the back ends that emit the kernel: `Backend("cpu", "ktpu")`."""

    names: tuple[str, ...]

    def __init__(self, *names: str):
        lowered = tuple(str(name).lower() for name in names)
        if not names or not set(lowered) <= set(BACKENDS):
            raise DeclarationError(f"Backend{names}: the back ends are {', '.join(BACKENDS)}")
        object.__setattr__(self, "names", lowered)


@dataclass(frozen=True)
class Unlowered(Annotation):
    """Tolerates that `backend` has no code for the kernel, tracked by a plan item."""

    backend: str
    tracked: str
    may_lower: bool = False
    hold: bool = False
    host_wave_below: int = 0

    def __post_init__(self):
        _text(self.tracked, "Unlowered(tracked=)")
        if self.backend not in BACKENDS:
            raise DeclarationError(f"Unlowered(backend={self.backend!r}): the back ends are {', '.join(BACKENDS)}")


@dataclass(frozen=True)
class Unbounded(Annotation):
    """Tolerates a block that is not constant without a declared ceiling, tracked by a plan item."""

    tracked: str

    def __post_init__(self):
        _text(self.tracked, "Unbounded(tracked=)")


@dataclass(frozen=True)
class Instantiate(Annotation):
    """The members of a template to build: `Instantiate(dict(TM=64), dict(TM=128), max=8)`."""

    members: tuple[dict, ...]
    max: int

    def __init__(self, *members: dict, max: int = 8):
        if not members or not all(isinstance(member, dict) for member in members):
            raise DeclarationError("Instantiate takes one dict of template values per member")
        if len(members) > max:
            raise DeclarationError(f"Instantiate: {len(members)} members, more than max={max}")
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "max", max)


@dataclass(frozen=True)
class Requires(Annotation):
    """A condition over template values, as text; a member that fails it is refused with the failing clause."""

    expression: str


class Device:
    """A helper: read where a kernel calls it, never run by the host."""

    is_device_helper = True

    def __init__(self, function: PythonFunction):
        if not isinstance(function, PythonFunction):
            raise DeclarationError(f"@device belongs on a function, not on {function!r}")
        self.function, self.name, self.values = function, function.__qualname__.split(".")[-1], {}
        self.arms: dict[str, PythonFunction] = {}

    def __call__(self, *_, **__):
        raise HostUse(f"{self.name} is a @device helper: kernels call it, the host does not")

    def arm(self, backend: str):
        """Decorator: a body for one back end. A helper whose own body is `...` has no portable one."""
        if backend not in BACKENDS:
            raise DeclarationError(f"{self.name}.arm({backend!r}): the back ends are {', '.join(BACKENDS)}")

        def add(function: PythonFunction) -> Device:
            self.arms[backend] = function
            return self

        return add

    @cached_property
    def portable(self) -> bool:
        """False for a helper whose body is only `...`."""
        body = definition_of(self.function).node.body
        return not (len(body) == 1 and getattr(getattr(body[0], "value", None), "value", None) is Ellipsis)


class Kernel:
    """A kernel: read through its source on first use. `program` is what it means, with everything refused in it.

    Keyword-only parameters are template values; `instance(TM=64)` is a member, named `name_64`.
    """

    KIND = "an XPU kernel"  # for messages, beside kernels of other languages
    is_kernel = True

    def __init__(self, function: PythonFunction, values: dict[str, int] | None = None, annotations=()):
        if not isinstance(function, PythonFunction):
            raise DeclarationError(f"@kernel belongs on a function, not on {function!r}")
        code = function.__code__
        self.function, self.values = function, dict(values or {})
        last = code.co_argcount + code.co_kwonlyargcount
        self.template = code.co_varnames[code.co_argcount : last]
        self.name = "_".join([function.__qualname__.split(".")[-1], *map(_symbol, self.values.values())])
        self.annotations: list[Annotation] = []
        self._programs: dict[str, Program] = {}
        for annotation in annotations or getattr(function, "xpu_annotations", ()):
            self.annotate(annotation)
        if not self.is_template:
            _KERNELS[f"{function.__module__}:{function.__qualname__}:{self.name}"] = self

    @property
    def is_template(self) -> bool:
        """True until every template value is given."""
        return bool(set(self.template) - set(self.values))

    def annotate(self, annotation: Annotation) -> None:
        """Add an annotation; one of each kind, but an Unlowered for each back end."""
        for have in self.annotations:
            if type(have) is type(annotation) and getattr(have, "backend", None) == getattr(
                annotation, "backend", None
            ):
                raise DeclarationError(f"{self.name}: @{type(annotation).__name__} twice")
        self.annotations.append(annotation)
        if self.find(Instantiate) and self.is_template:
            self.instances  # noqa: B018 - a member that breaks Requires is refused where it is declared

    def find(self, kind: type):
        """The annotation of a kind, or None."""
        return next((annotation for annotation in self.annotations if isinstance(annotation, kind)), None)

    @property
    def wave_width(self) -> int | None:
        """The declared wave width."""
        wave = self.find(Wave)
        return wave.width if wave else None

    def instance(self, **values: int) -> Kernel:
        """A member of a template. Every value is an integer; Requires is checked here."""
        if set(values) != set(self.template):
            raise DeclarationError(f"{self.name}: its template values are {list(self.template)}, not {list(values)}")
        for name, value in values.items():
            if type(value) not in (int, bool):
                raise DeclarationError(f"{self.name}: template value {name} is an integer, not {value!r}")
        ordered = {name: values[name] for name in self.template}
        requires = self.find(Requires)
        if requires:
            clause = failing_clause(requires.expression, ordered, f"{self.name}: Requires")
            if clause:
                raise DeclarationError(f"XPU-TEMPLATE-REQUIREMENT: {self.name}: {ordered} fails `{clause}`")
        kept = [annotation for annotation in self.annotations if not isinstance(annotation, Instantiate)]
        return Kernel(self.function, ordered, kept)

    @property
    def instances(self) -> dict[str, Kernel]:
        """The members that Instantiate lists, by registered name."""
        listed = self.find(Instantiate)
        members = [self.instance(**member) for member in listed.members] if listed else []
        return {member.name: member for member in members}

    def ceiling(self, width: int) -> int | None:
        """The most work-items of a block that Occupancy allows at a wave width; None without a bound."""
        occupancy = self.find(Occupancy)
        if occupancy is None or (occupancy.max_threads is None and occupancy.max_waves is None):
            return None
        what = f"{self.name}: Occupancy"
        if occupancy.max_threads is not None:
            return evaluate(occupancy.max_threads, self.values, what)
        return evaluate(occupancy.max_waves, self.values, what) * width

    @cached_property
    def program(self) -> Program:
        """The typed tree."""
        if self.is_template:
            raise DeclarationError(f"{self.name} is a template over {list(self.template)}; .instance(...) is a kernel")
        return build(self)

    def program_on(self, backend: str) -> Program:
        """The typed tree that a back end lowers: with the bodies that helpers have for it."""
        if backend not in self.program.arms:
            return self.program
        if backend not in self._programs:
            self._programs[backend] = build(self, backend)
        return self._programs[backend]

    def __call__(self, *_, **__):
        raise HostUse(f"{self.name} is a kernel: {self.name}.launch(stream, grid=, block=)(...) runs it")

    def launch(self, stream=None, *, grid, block=1, shared_bytes: int | None = None):
        """See `launch.bind`: the call that takes the arguments and runs."""
        from .launch import bind

        return bind(self, stream, grid, block, shared_bytes)


_KERNELS: dict[str, Kernel] = {}


def registered_kernels() -> tuple[Kernel, ...]:
    """Every kernel and template member declared so far."""
    return tuple(_KERNELS.values())


def _symbol(value: int) -> str:
    return str(int(value)).replace("-", "m")


def kernel(function: PythonFunction) -> Kernel:
    """Decorator: the function's body is a kernel; it is read, never run."""
    return Kernel(function)


def device(function: PythonFunction) -> Device:
    """Decorator: the function is a helper of kernels."""
    return Device(function)


def define(text: str, names: dict, file: str = "<kernel>"):
    """Declare what `text` holds, a module's worth of kernels and helpers, in the dict `names`; gives `names`.

    For generated kernels: their source is kept where `inspect` finds it.
    """
    file = f"<{file.strip('<>')} {len(linecache.cache)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names.setdefault("__name__", file)
    exec(compile(text, file, "exec"), names)
    return names
