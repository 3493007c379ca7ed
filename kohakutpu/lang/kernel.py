"""The kernel decorator: ports and knobs from a signature, tracing, and shapes to extents."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import SupportsIndex

import numpy as np

from .extents import Expr, Extents, Name, names_in, resolve
from .files import module_of_file
from .misuse import SPELLINGS, NoNumber
from .recorder import Recorder, active
from .source import KernelError, Source, at, definition, here, located
from .trace import ELEMENTS, Buffer, Trace
from .values import Handle, positive

DEFAULT_PART = 8192
RESERVED = {"fuse": True, "part": DEFAULT_PART, "ksplit": 1}


@dataclass(frozen=True)
class Port:
    """`L.In(*shape)` or `L.Out(*shape)` as a parameter default; `...` leads: batch axes, or alone the whole array."""

    role: str
    shape: tuple
    source: Source


def In(*shape) -> Port:  # noqa: N802 - the language's spelling
    """An operand."""
    return Port("in", shape, here())


def Out(*shape) -> Port:  # noqa: N802
    """A result, allocated by the call."""
    return Port("out", shape, here())


def _declare(name: str, role: str, shape: tuple, source: Source) -> Buffer:
    lead = bool(shape) and shape[0] is Ellipsis
    rest = shape[1:] if lead else shape
    for extent in rest:
        if isinstance(extent, bool) or not isinstance(extent, (int, Expr)):
            raise KernelError(f"{name}: an axis is a dim, an expression of dims or an integer, not {extent!r}", source)
        if isinstance(extent, int) and extent < 1:
            raise KernelError(f"{name}: an axis of {extent} elements", source)
    if not shape:
        raise KernelError(f"{name}: a buffer needs a shape", source)
    return Buffer(name, role, rest, lead, lead and not rest, source)


def temp(*shape) -> Handle:
    """A buffer of the kernel's own. In a batched kernel it belongs to one batch element, with or without `...`."""
    recorder = active()
    source = here()
    buffer = _declare(recorder.fresh("t"), "temp", shape, source)
    ports = recorder.buffers.values()
    if buffer.whole != any(port.whole for port in ports):
        raise KernelError("a temp is `...` alone exactly when the ports are", source)
    if not buffer.whole:
        batched = any(port.batched for port in ports)
        buffer = Buffer(buffer.name, "temp", buffer.shape, batched, False, source)
    recorder.buffers[buffer.name] = buffer
    return Handle(buffer)


def table(values) -> Handle:
    """A buffer whose contents are known while the kernel is traced: an array of numbers, rounded to FP16, not batched.

    Raises KernelError for numbers that FP16 cannot hold.
    """
    source = here()
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise KernelError(f"a table is an array of numbers, not {type(values).__name__}", source) from None
    if not array.ndim or not array.size:
        raise KernelError(f"a table of shape {array.shape} has no elements along an axis", source)
    with np.errstate(over="ignore"):
        held = array.astype(np.float16)
    if not np.isfinite(held).all():
        raise KernelError("a table holds finite numbers in the range of FP16 (65504)", source)
    patterns = held.view(np.uint16)
    return _tabled(array.shape, lambda shape: patterns, source)


def column_index(count) -> Handle:
    """0, 1, .. count-1 as a vector of `count` elements: in a row statement, the index along the last axis."""
    return _counted((count,), lambda shape: np.arange(shape[0]))


def row_index(count, period=None) -> Handle:
    """0, 1, .. count-1 as one number a row, (count, 1); with `period`, counted modulo it."""
    source = here()
    known = {"period": period} if period is not None else {}
    if isinstance(period, Expr):
        raise KernelError(
            f"the period {period} is not a number while the kernel is traced; use a knob, or leave the period away to count all rows",
            source,
        )
    if period is not None:
        positive(period, "row_index: period", source)
    return _counted((count, 1), lambda shape: np.arange(shape[0]).reshape(shape) % known.get("period", shape[0]))


INTEGERS = 2048  # FP16 holds every integer up to this one


def _counted(shape: tuple, made: Callable[[tuple[int, ...]], np.ndarray]) -> Handle:
    source = here()

    def contents(shape: tuple[int, ...]) -> np.ndarray:
        values = made(shape)
        if values.max() > INTEGERS:
            raise KernelError(f"indices up to {values.max()} are not all FP16 numbers; at most {INTEGERS}", source)
        return values.astype(np.float16).view(np.uint16)

    return _tabled(shape, contents, source)


def _tabled(shape: tuple, contents: Callable, source: Source) -> Handle:
    recorder = active()
    declared = _declare(recorder.fresh("table"), "table", shape, source)
    if any(port.whole for port in recorder.buffers.values()):
        raise KernelError("a kernel whose ports are `...` alone has no rows or columns to lay a table against", source)
    recorder.buffers[declared.name] = replace(declared, contents=contents)
    return Handle(recorder.buffers[declared.name])


class Kernel:
    """A traced function. `ports` and `knobs` (with defaults) come from its signature."""

    KIND = "a kernel of tiles"  # for messages, beside kernels of other languages

    def __init__(self, function: Callable):
        if not isinstance(getattr(function, "__code__", None), CodeType):
            raise KernelError(f"kernel: expected a function, got {type(function).__name__}", here())
        functools.update_wrapper(self, function)
        self.name = function.__name__
        code = function.__code__
        self.source = definition(code.co_filename, code.co_firstlineno)
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise KernelError(
                f"{self.name} is a generator or `async`, whose body does not run when it is called; a kernel is a plain function", self.source
            )
        self.function = function
        self.ports: dict[str, Buffer] = {}
        self.knobs: dict[str, object] = {}
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise KernelError(f"{self.name}: *{parameter.name} is neither a port nor a knob", self.source)
            if parameter.default is parameter.empty:
                raise KernelError(
                    f"{self.name}: {parameter.name} needs a default: L.In(..), L.Out(..) or a knob", self.source
                )
            if isinstance(parameter.default, Port):
                port = parameter.default
                self.ports[parameter.name] = _declare(parameter.name, port.role, port.shape, port.source)
            else:
                self.knobs[parameter.name] = parameter.default
        self._check_ports()
        self._traces: dict[tuple, Trace] = {}

    def _check_ports(self) -> None:
        roles = [port.role for port in self.ports.values()]
        for role, what in (("in", "L.In"), ("out", "L.Out")):
            if role not in roles:
                raise KernelError(f"{self.name} has no {what} port", self.source)
        if len({port.whole for port in self.ports.values() if port.batched}) > 1:
            raise KernelError(f"{self.name} mixes ports of `...` alone with ports of one batch element", self.source)
        if any(port.whole for port in self.ports.values()) and not all(port.whole for port in self.ports.values()):
            raise KernelError(f"{self.name}: when one port is `...` alone, all are", self.source)
        batched = [port for port in self.ports.values() if port.batched]
        if batched and not any(port.role == "in" for port in batched):
            raise KernelError(f"{self.name}: an output has `...` and no operand fixes it", self.source)
        if batched and any(port.role == "out" and not port.batched for port in self.ports.values()):
            raise KernelError(f"{self.name}: an output without `...` in a batched kernel", self.source)

    def __repr__(self) -> str:
        return f"<kernel {self.name} at {self.source}>"

    def __call__(self, *_, **__):
        raise KernelError(
            f"{self.name} is a kernel, which is not called: compile or interpret it, or run it on tensors, "
            f"kohakutpu.session.call({self.name}, ..)",
            here(),
        )

    @property
    def inputs(self) -> list[Buffer]:
        return [port for port in self.ports.values() if port.role == "in"]

    @property
    def outputs(self) -> list[Buffer]:
        return [port for port in self.ports.values() if port.role == "out"]

    def settings(self, knobs: Mapping[str, object]) -> dict[str, object]:
        """Every knob, the reserved `fuse`, `part` and `ksplit` included, with the given ones in place of their defaults."""
        allowed = RESERVED | self.knobs
        for name in knobs:
            if name not in allowed:
                raise KernelError(f"{self.name} has no knob {name!r}; it has {', '.join(allowed)}", self.source)
        full = allowed | dict(knobs)
        if not isinstance(full["fuse"], bool):
            raise KernelError(f"fuse is True or False, not {full['fuse']!r}", self.source)
        positive(full["part"], f"{self.name}: knob part", self.source)
        return full

    def trace(self, **knobs) -> Trace:
        """The trace at a setting of the knobs; each setting of numbers and names is traced once.

        Raises KernelError with the offending line.
        """
        full = self.settings(knobs)
        positive(full["ksplit"], f"{self.name}: knob ksplit", self.source)
        if not all(tells_all(value) for value in full.values()):
            return self._record(full)
        key = tuple(sorted((name, repr(value)) for name, value in full.items()))
        if key not in self._traces:
            self._traces[key] = self._record(full)
        return self._traces[key]

    def _record(self, full: dict[str, object]) -> Trace:
        buffers = dict(self.ports)
        with Recorder(full, buffers) as recorder:
            handles = {name: Handle(port) for name, port in self.ports.items()}
            try:
                self.function(**handles, **{name: full[name] for name in self.knobs})
            except KernelError as error:
                if error.source is not None:
                    raise
                raise KernelError(error.message, _line_of(error, self.source, self.function.__code__)) from error
            except Exception as error:
                raise KernelError(_said(error), _line_of(error, self.source)) from error
        if recorder.broken is not None:
            raise recorder.broken
        recorder.require_used()
        if not recorder.body:
            raise KernelError(f"{self.name} does nothing: its body holds no statement; y <<= value writes a buffer, and y = value only names a value", self.source)
        if recorder.never_written:
            names = ", ".join(buffer.name for buffer in recorder.never_written)
            raise KernelError(f"{self.name} never writes {names}", recorder.never_written[0].source)
        shown = {name: value for name, value in full.items() if name in self.knobs or name in RESERVED}
        if shown["ksplit"] == 1 and "ksplit" not in self.knobs:
            del shown["ksplit"]
        return Trace(
            self.name,
            buffers,
            tuple(recorder.body),
            shown,
            full["fuse"],
            full["part"],
            full["ksplit"],
            recorder.fresh_count,
            self.source,
        )

    def solve(self, shapes: Mapping[str, tuple[int, ...]]) -> Extents:
        """The extents that the operands' shapes fix.

        Raises KernelError for an unknown, missing or surplus operand, an output passed as operand, a wrong rank, a
        disagreement, and an extent that nothing fixes.
        """
        for name in shapes:
            if name not in self.ports:
                raise KernelError(
                    f"{self.name} has no operand {name!r}; it has {', '.join(p.name for p in self.inputs)}",
                    self.source,
                )
            if self.ports[name].role == "out":
                raise KernelError(
                    f"{name} is an output of {self.name}: its shape follows from the operands", self.ports[name].source
                )
        missing = [port.name for port in self.inputs if port.name not in shapes]
        if missing:
            raise KernelError(f"{self.name}: no shape for {', '.join(missing)}", self.ports[missing[0]].source)
        known: dict[str, int] = {}
        lead: tuple[int, ...] | None = None
        for port in self.inputs:
            shape = _shape(self.name, port, shapes[port.name])
            split = len(shape) - len(port.shape)
            if split < 0 or (split > 0 and not port.batched):
                declared = ["..."] * port.batched + [str(extent) for extent in port.shape]
                raise KernelError(f"{self.name}: {port.name}({', '.join(declared)}) cannot have shape {shape}", port.source)
            if port.batched:
                if lead is not None and lead != shape[:split]:
                    raise KernelError(
                        f"{self.name}: the batch axes of {port.name} are {shape[:split]}, others have {lead}",
                        port.source,
                    )
                lead = shape[:split]
            for declared, extent in zip(port.shape, shape[split:], strict=True):
                if isinstance(declared, Name) and known.setdefault(declared.name, extent) != extent:
                    raise KernelError(
                        f"{self.name}: {declared} is {known[declared.name]} for one operand and {extent} for "
                        f"{port.name}",
                        port.source,
                    )
        if any(port.whole for port in self.inputs):
            known[ELEMENTS] = math.prod(lead or ())
        extents = Extents(known, lead or ())
        for port in self.ports.values():
            for declared in port.shape:
                unknown = [] if isinstance(declared, int) else sorted(names_in(declared) - known.keys())
                if unknown:
                    raise KernelError(f"{self.name}: no operand fixes {', '.join(unknown)} of {port.name}", port.source)
                with located(port.source):
                    extent = resolve(declared, known)
                if extent < 1:
                    raise KernelError(f"{self.name}: the axis {declared} of {port.name} has {extent} elements", port.source)
        for port in self.inputs:
            shape = _shape(self.name, port, shapes[port.name])
            if shape != port.logical_shape(extents):
                raise KernelError(
                    f"{self.name}: {port.name} has shape {shape}, expected {port.logical_shape(extents)}", port.source
                )
        return extents


def tells_all(value: object) -> bool:
    """Whether equal `repr`s mean equal values: not of an array, cut short in the middle, nor of what can change."""
    if isinstance(value, tuple):
        return all(map(tells_all, value))
    return value is None or isinstance(value, (bool, int, float, str, np.number))


def _shape(kernel_name: str, port: Buffer, given: Sequence[SupportsIndex]) -> tuple[int, ...]:
    try:
        shape = tuple(operator.index(extent) for extent in given)
    except TypeError:
        shape = (0,)
    if any(extent < 1 for extent in shape):
        raise KernelError(
            f"{kernel_name}: {port.name} has shape {given!r}; every axis is an integer of at least 1", port.source
        )
    return shape


def _hint(error: Exception) -> str:
    """What to write in place of something the language does not have."""
    name = getattr(error, "name", None)
    if isinstance(error, AttributeError) and name in SPELLINGS:
        return f". The machine has no {name}: write {SPELLINGS[name]}"
    return ""


def _said(error: Exception) -> str:
    """An error of Python's in the body, in words of the language where it is about a value."""
    if isinstance(error, AttributeError) and isinstance(error.obj, NoNumber):
        return f"{error.obj.SORT} has no attribute {error.name}{_hint(error)}"
    return f"{type(error).__name__}: {error}{_hint(error)}"


def _line_of(error: Exception, kernel_source: Source, within: CodeType | None = None) -> Source:
    """The innermost line of the kernel's own file (or of `within`) that the error passed through, or the kernel's first."""
    found, frame = kernel_source, error.__traceback__
    while frame is not None:
        code = frame.tb_frame.f_code
        if code is within if within else code.co_filename == kernel_source.file:
            found = at(kernel_source.file, frame.tb_lineno)
        frame = frame.tb_next
    return found


def kernel(function: Callable) -> Kernel:
    """Make a function a kernel: parameters whose default is `L.In`/`L.Out` are ports, the others are knobs."""
    return Kernel(function)


def load(
    reference: str,
    kinds: tuple[type, ...] = (Kernel,),
    what: str = "kernel",
    fits: Callable[[ModuleType, object], bool] | None = None,
):
    """The object, of one of `kinds`, that `module:function` or `path.py:function` names.

    Raises KernelError when the module, the file or the function is missing or is no `what`; of a function that
    is missing it lists what `fits(module, object)` takes, by default all of `kinds`.
    """
    where, colon, name = reference.rpartition(":")
    if not colon or not where or not name:
        raise KernelError(f"{reference!r} is not of the form module:function or path.py:function")
    try:
        module = module_of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except FileNotFoundError as error:
        raise KernelError(f"{reference}: there is no file {error.filename}") from error
    except ModuleNotFoundError as error:
        beside = f", and none beside {where}" if where.endswith(".py") else ""
        raise KernelError(f"{reference}: there is no module {error.name}{beside}") from error
    except KernelError:
        raise
    except Exception as error:
        raise KernelError(f"{reference}: {where} failed to load: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        fits = fits or (lambda _, value: isinstance(value, kinds))
        listed = sorted(key for key, value in vars(module).items() if not key.startswith("_") and fits(module, value))
        raise KernelError(f"{reference}: {where} has no {name}; its {what}s are {', '.join(listed) or 'none'}")
    found = getattr(module, name)
    if not isinstance(found, kinds):
        kind, expected = getattr(type(found), "KIND", None), f"a {what}"
        if kind:  # of another language
            expected = getattr(kinds[0], "KIND", expected)
        raise KernelError(f"{reference}: {name} is {kind or _described(found)}, not {expected}")
    return found


def _described(found: object) -> str:
    """An object by its type."""
    name = type(found).__name__
    return "None" if found is None else f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
