"""What a model function does, as calls of kernels on tensors: recorded by running it once on tensors without contents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kohakutpu.compiler import Options
from kohakutpu.lang.kernel import Kernel
from kohakutpu.lang.source import KernelError, Source

from .tensors import SessionError, Tensor, caller

if TYPE_CHECKING:
    from .session import Session


DECIDED = ("addresses", "layouts", "allow_overlap")  # options that the plan sets


@dataclass(frozen=True)
class Call:
    """A kernel on tensors: `operands` and `results` by port, the knobs that were given, and the line of the call."""

    number: int
    kernel: Kernel
    operands: Mapping[str, Tensor]
    results: Mapping[str, Tensor]
    knobs: Mapping[str, object]
    options: Options
    source: Source

    @property
    def name(self) -> str:
        return f"{self.kernel.name}_{self.number}"

    @property
    def whole(self) -> bool:
        """Whether it works on elements one by one, in any order: all ports are `...`."""
        return any(port.whole for port in self.kernel.ports.values())


@dataclass(eq=False)
class Graph:
    """The calls of one model function in order, its inputs, and what it returned (a tensor, or a tuple or dict of them)."""

    session: Session
    name: str
    inputs: dict[str, Tensor] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    names: dict[str, Tensor] = field(default_factory=dict)

    def rename(self, tensor: Tensor, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise SessionError(f"{name!r} is no name for a tensor", caller())
        if self.names.get(name, tensor) is not tensor or name in self.session.names:
            raise SessionError(f"{self.name} has a tensor {name} already", caller())
        self.names.pop(tensor.name)
        self.names[name] = tensor
        tensor.name = name

    def add(self, name: str, shape: tuple[int, ...], kind: str) -> Tensor:
        while name in self.names or name in self.session.names:
            name += "'"
        self.names[name] = Tensor(self.session, name, shape, kind, self)
        return self.names[name]

    def record(self, kernel: Kernel, operands: Mapping[str, Tensor], knobs: Mapping[str, object], options: Options,
               source: Source) -> Call:  # fmt: skip
        try:
            extents = kernel.solve({name: tensor.shape for name, tensor in operands.items()})
            kernel.settings(knobs)
        except KernelError as error:
            given = ", ".join(f"{port}={tensor.name}{list(tensor.shape)}" for port, tensor in operands.items())
            raise SessionError(f"{error.message} (the call has {given})", source) from error
        number = len(self.calls)
        several = len(kernel.outputs) > 1
        results = {
            port.name: self.add(f"{kernel.name}_{number}" + f".{port.name}" * several, port.logical_shape(extents), "result")
            for port in kernel.outputs
        }
        self.calls.append(Call(number, kernel, dict(operands), results, dict(knobs), options, source))
        return self.calls[-1]


def trace(session: Session, function: Callable[..., object], name: str, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """The graph of a model function whose inputs have these shapes.

    Raises SessionError for calls that are refused, and for a function that returns anything but results of its calls.
    """
    if isinstance(function, Kernel):
        raise SessionError(f"{function.name} is a kernel: a plan is made of a function that calls it", caller())
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise SessionError(f"{name} is a generator or asynchronous: calling it runs nothing; expected a plain function", caller())
    graph = Graph(session, name)
    for port, shape in shapes.items():
        if not isinstance(shape, tuple) or not shape or not all(type(n) is int and n > 0 for n in shape):
            raise SessionError(f"{name}: input {port} has shape {shape!r}; expected a tuple of positive integers", caller())
        graph.inputs[port] = graph.add(port, shape, "input")
    try:
        inspect.signature(function).bind(**shapes)
    except (TypeError, ValueError) as error:  # a ValueError: Python does not know what it takes
        raise SessionError(f"{name} is given {', '.join(shapes) or 'no inputs'}: {error}", caller()) from error
    if session.tracing is not None:
        raise SessionError(f"{name} is traced inside {session.tracing.name}: call it as a function there", caller())
    session.tracing = graph
    try:
        returned = function(**graph.inputs)
    finally:
        session.tracing = None
    if isinstance(returned, Tensor):
        graph.outputs = {returned.name: returned}
    elif isinstance(returned, dict):
        graph.outputs = dict(returned)
    else:
        values = returned if isinstance(returned, tuple) else (returned,)
        graph.outputs = {getattr(value, "name", repr(value)): value for value in values}
    if not graph.outputs:
        raise SessionError(f"{name} returns no results: expected some of the kernels that it calls", caller())
    for key, value in graph.outputs.items():
        if not isinstance(value, Tensor) or value.kind != "result" or value.graph is not graph:
            what = repr(value) if isinstance(value, Tensor) else type(value).__name__
            raise SessionError(f"{name} returns {what} as {key}: expected results of kernels that it calls", caller())
    return graph


def operands_of(kernel: Kernel, given: Mapping[str, object], source: Source) -> tuple[dict[str, Tensor], dict[str, object]]:
    """What a call was given, as operands by port and knobs. Raises SessionError for an operand that is no tensor, or
    one that cannot be used here."""
    inputs = {port.name for port in kernel.inputs}
    operands: dict[str, Tensor] = {}
    knobs: dict[str, object] = {}
    for name, value in given.items():
        if name not in inputs:
            if isinstance(value, Tensor):
                raise SessionError(f"{kernel.name} has no operand {name}; it has {', '.join(sorted(inputs))}", source)
            knobs[name] = value
            continue
        if not isinstance(value, Tensor):
            raise SessionError(
                f"{kernel.name}: {name} is of type {type(value).__name__}, not a tensor; pin an array, or make it an input", source
            )
        value.require(source)
        operands[name] = value
    sessions = {id(tensor.session) for tensor in operands.values()}
    if len(sessions) > 1:
        listed = ", ".join(f"{name}={tensor.name} of {tensor.session.name}" for name, tensor in operands.items())
        raise SessionError(f"{kernel.name}: tensors of different sessions: {listed}", source)
    if not operands:
        raise SessionError(f"{kernel.name} is called without operands; it has {', '.join(sorted(inputs))}", source)
    session = next(iter(operands.values())).session
    for name, tensor in operands.items():
        root = tensor.root
        if root.image is None and root.graph is not session.tracing and root.kind != "pinned":
            raise SessionError(
                f"{kernel.name}: {name}={tensor.name} is a value of {tensor.graph.name}, which is not being traced", source
            )
    return operands, knobs


def call(kernel: Kernel, /, *, options: Options = Options(), **given):  # noqa: B008 - frozen
    """Call a kernel: operands by port, then knobs. Gives the result, or a dict of them where it has several outputs.

    Inside a model function the call is recorded; outside it runs at once, and its results stay in memory until they are
    freed. `options` are the compiler's; where buffers lie is not the caller's to say. Raises SessionError.
    """
    source = caller()
    if not isinstance(kernel, Kernel):
        raise SessionError(f"{kernel!r} is no kernel", source)
    for name in DECIDED:
        if getattr(options, name):
            raise SessionError(f"{kernel.name}: {name} is decided by the plan", source)
    operands, knobs = operands_of(kernel, given, source)
    session = next(iter(operands.values())).session
    with session.alone:
        if session.tracing is not None:
            results = session.tracing.record(kernel, operands, knobs, options, source).results
        else:
            results = session.at_once(kernel, operands, knobs, options, source)
    return dict(results) if len(results) > 1 else next(iter(results.values()))
