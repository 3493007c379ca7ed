"""A planned model function: its text, its execution on the machine, and the reference interpreter beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kohakutpu.compiler import Artifact, BufferImage
from kohakutpu.compiler.copies import copy_artifact
from kohakutpu.compiler.layouts import Quantised
from kohakutpu.compiler.predict import predict
from kohakutpu.host.compare import digest
from kohakutpu.host.simulate import run_reference
from kohakutpu.lang.source import KernelError
from kohakutpu.reference import saturations
from kohakutpu.wording import counted

from .graph import Graph
from .planning import CopyStep, KernelStep, Slot, Step, pages, planned
from .tensors import SessionError, Tensor, caller, patterns

if TYPE_CHECKING:
    from .session import Session

Watch = Callable[[Tensor, np.ndarray], None]


@dataclass(frozen=True)
class StepTime:
    """A step of a run and the time it took, in the transport's unit."""

    name: str
    elapsed: float


class Outputs(dict):
    """Outputs by name; a name that there is none of is a SessionError, which lists those there are."""

    def __init__(self, plan: str, values: Mapping[str, object]):
        super().__init__(values)
        self.plan = plan

    def __missing__(self, name: object):
        raise SessionError(
            f"{self.plan} has no output {name!r}: its outputs are {', '.join(map(str, self))} (a result without .named(...) is "
            "called after its kernel and the number of its call, matmul_0)",
            caller(),
        )


@dataclass(frozen=True)
class Outcome:
    """What a run gave: `outputs` (float16) by the names that the model function returned; `elapsed` in the transport's
    `unit`, transfers of inputs and outputs not included."""

    outputs: Mapping[str, np.ndarray]
    elapsed: float
    unit: str
    steps: tuple[StepTime, ...]


@dataclass(frozen=True)
class Boundary:
    """A result of a kernel on the machine and by the interpreter: digests, how many elements differ, the first of them; and a
    line for each statement that saturated elements of it, or of a temp of the kernel."""

    kernel: str
    tensor: str
    bytes: int
    expected: str
    found: str
    different: int
    first: tuple[int, ...] | None
    saturated: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return self.different == 0

    def __str__(self) -> str:
        if self.equal:
            text = f"{self.kernel}: {self.tensor} {self.bytes} bytes {self.found} byte-equal"
            return "\n  ".join([text, *self.saturated])
        where = f"{self.different} elements differ, the first at {list(self.first)}"
        return f"{self.kernel}: {self.tensor} {self.bytes} bytes, expected {self.expected}, found {self.found}: {where}"


class Plan:
    """A model function with every buffer placed and every kernel compiled; made by `Session.plan`.

    `steps` are kernels and copies between them in order, `slots` all buffers by name, `spans` the pages that are the
    plan's own. `outputs` are the tensors that it leaves in memory: what they hold is the last run's.
    """

    def __init__(self, session: Session, graph: Graph):
        self.session = session
        self.graph = graph
        self.name = graph.name
        self._layout = planned(session, graph)
        self.steps: list[Step] = self._layout.steps
        self.slots: dict[str, Slot] = self._layout.slots
        self.outputs: dict[str, Tensor] = Outputs(self.name, graph.outputs)
        self.artifacts: list[Artifact | None] = []
        try:
            self.artifacts = [self._artifact(step) for step in self.steps]
        except KernelError as error:
            session.forget_unplaced()
            raise SessionError(f"{self.name}: {error.message}", error.source) from error
        for slot in self.slots.values():
            slot.placed = slot.placed or slot.role in ("pinned", "constant")
        for tensor in self.outputs.values():
            tensor.image = self.slots[tensor.name].image
            tensor.dirt = tensor.name in self._layout.dirt.rows, self._layout.dirt.columns.get(tensor.name)
        self.freed = False
        self._cleared = False

    def _artifact(self, step: Step) -> Artifact | None:
        if isinstance(step, CopyStep) and step.compilation is None:
            source, target = self._source(step), self.slots[step.target].image
            return None if step.cut is None else copy_artifact(step.cut, source, target, self.session.machine)
        addresses = {name: self.slots[slot].image.address for name, slot in step.slots.items()}
        images = {name: replace(image, address=addresses[name]) for name, image in step.compilation.images.items()}
        return self.session.artifact(step.key, images, lambda: step.compilation.artifact(images))

    def _source(self, step: CopyStep) -> BufferImage:
        """What a copy reads, in the shape in which it does."""
        held = self.slots[step.source].image
        return held if step.view is None else replace(step.view, address=held.address)

    # ---- memory ----

    @property
    def own(self) -> list[Slot]:
        """Buffers that are the plan's alone."""
        return [slot for slot in self.slots.values() if slot.role in ("input", "result", "copy", "temp")]

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """(first byte, end) of the plan's own pages."""
        found: list[tuple[int, int]] = []
        for first, end in sorted((slot.image.address, pages(self._layout.end(slot.name))) for slot in self.own):
            if found and first <= found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], end)
            else:
                found.append((first, end))
        return found

    @property
    def peak_bytes(self) -> int:
        """The first byte of memory that no run of the plan touches, nor one behind it."""
        return max(self._layout.end(name) for name in self.slots)

    def free(self) -> None:
        """Give the plan's pages back; its outputs are gone with it."""
        self._alive()
        self.session.plans.remove(self)
        self.freed = True
        for tensor in self.outputs.values():
            tensor.freed = True

    def _alive(self) -> None:
        if self.freed:
            raise SessionError(f"the plan of {self.name} was freed", caller())

    def _require(self) -> None:
        self._alive()
        source = caller()
        for slot in self.slots.values():
            if slot.role in ("pinned", "resident"):
                slot.tensor.require(source)
            if slot.role == "resident" and not slot.tensor.written:
                raise SessionError(f"{self.name} reads {slot.name} before anything has been written to it", source)

    # ---- execution ----

    def _inputs(self, given: Mapping[str, np.ndarray]) -> dict[Tensor, np.ndarray]:
        if given.keys() != self.graph.inputs.keys():
            wanted, got = (", ".join(sorted(names)) or "nothing" for names in (self.graph.inputs, given))
            raise SessionError(f"{self.name} takes {wanted}; given {got}", caller())
        values = {tensor: patterns(f"{self.name}: {name}", given[name], tensor.shape) for name, tensor in self.graph.inputs.items()}
        views = [slot.tensor for slot in self.slots.values() if slot.role == "input" and slot.tensor not in values]
        return values | {view: values[view.base].reshape(view.shape) for view in views}

    def _write(self, image: BufferImage, data: np.ndarray) -> None:
        loader = self.session.loader
        if isinstance(image.layout, Quantised):
            loader.upload(image, data)
        else:
            loader.write_buffer(image, image.pack(data))

    def _load(self, inputs: Mapping[Tensor, np.ndarray]) -> None:
        """Bring to memory what is not there yet, and the inputs."""
        loader = self.session.loader
        for slot in self.slots.values():
            if slot.role == "input":
                self._write(slot.image, inputs[slot.tensor])
            elif slot.role == "pinned" and not slot.loaded:
                self._write(slot.image, slot.tensor.root.array.reshape(slot.tensor.shape))
                slot.loaded = True
            elif slot.role == "constant" and not slot.loaded:
                loader.write_buffer(slot.image, slot.image.contents())
                slot.loaded = True
            elif slot.cleared and not self._cleared:
                loader.write_buffer(slot.image, bytes(slot.image.bytes))
        self._cleared = True

    def run(self, /, **inputs: np.ndarray) -> Outcome:
        """Run every step on inputs of float16 (or uint16 bit patterns), and read the outputs.

        Raises SessionError for wrong inputs and freed tensors, and what the loader raises for a machine that fails.
        """
        return self._run(inputs, None)

    def _run(self, given: Mapping[str, np.ndarray], watch: Watch | None) -> Outcome:
        with self.session.alone:
            return self._steps(given, watch)

    def _steps(self, given: Mapping[str, np.ndarray], watch: Watch | None) -> Outcome:
        self._require()
        inputs = self._inputs(given)
        loader = self.session.loader
        self.session.require_whole(caller())
        loader.driver.identify()
        loader.driver.clear_error()
        for tensor in self.outputs.values():
            tensor.written = False  # before inputs go up: they may share pages with outputs
        self._load(inputs)
        times = []
        for step, artifact in zip(self.steps, self.artifacts, strict=True):
            start = loader.transport.now
            if artifact is None:
                source, target = self._source(step), self.slots[step.target].image
                self._write(target, source.unpack(loader.read_buffer(source)))
            else:
                try:
                    loader.compute(artifact)
                except BaseException as error:
                    self.session.interrupted = f"{self.name} stopped in {step_name(step)}: {said(error)}"
                    raise
            times.append(StepTime(step_name(step), loader.transport.now - start))
            if watch is not None and isinstance(step, KernelStep):
                for tensor in step.call.results.values():
                    image = self.slots[tensor.name].image
                    watch(tensor, image.unpack(loader.read_buffer(image)))
        for tensor in self.outputs.values():
            tensor.written = True
        outputs = Outputs(self.name, {name: tensor.read() for name, tensor in self.outputs.items()})
        return Outcome(outputs, sum(time.elapsed for time in times), loader.transport.unit, tuple(times))

    # ---- the interpreter ----

    def meant(self, /, **inputs: np.ndarray) -> dict[Tensor, np.ndarray]:
        """Every kernel's results (uint16 patterns), by the reference interpreter, one kernel after another."""
        return self._meant(inputs, {})

    def _meant(self, inputs: Mapping[str, np.ndarray], saturated: dict[Tensor, list[str]]) -> dict[Tensor, np.ndarray]:
        """`saturated` gets a line for each statement that saturated elements, with the kernel's result they belong to."""
        values = dict(self._inputs(inputs))
        for step in self.steps:
            if isinstance(step, KernelStep):
                call = step.call
                for tensor in call.operands.values():
                    root = tensor.root
                    if root not in values:
                        values[root] = root.array if root.kind == "pinned" else root.read().view(np.uint16)
                    values[tensor] = values[root].reshape(tensor.shape)
                trace = step.compilation.trace
                knobs = trace.knobs
                operands = {port: values[tensor] for port, tensor in call.operands.items()}
                image = run_reference(call.kernel, knobs, operands, self.session.machine, constants=call.options.constants)
                values |= {call.results[port]: found for port, found in image.outputs.items()}
                for held, line in zip(sorted(image.saturated.items()), saturations(trace, image), strict=True):
                    result = call.results.get(held[1].buffer, next(iter(call.results.values())))
                    saturated.setdefault(result, []).append(line)
        return {tensor: value for tensor, value in values.items() if tensor.kind == "result" and tensor.graph is self.graph}

    def verify(self, /, **inputs: np.ndarray) -> list[Boundary]:
        """Run, and hold what every kernel leaves in memory against the interpreter, before another overwrites it."""
        found: dict[Tensor, np.ndarray] = {}
        self._run(inputs, lambda tensor, value: found.setdefault(tensor, value))
        rows = []
        kernels = {tensor: call.name for call in self.graph.calls for tensor in call.results.values()}
        saturated: dict[Tensor, list[str]] = {}
        for tensor, want in self._meant(inputs, saturated).items():
            wrong = np.argwhere(found[tensor] != want)
            first = tuple(int(i) for i in wrong[0]) if len(wrong) else None
            digests = digest(want), digest(found[tensor])
            lines = tuple(saturated.get(tensor, ()))
            rows.append(Boundary(kernels[tensor], tensor.name, 2 * want.size, *digests, len(wrong), first, lines))
        return rows

    # ---- text ----

    @cached_property
    def predicted(self) -> tuple[int | None, ...]:
        """Predicted cycles of every step, None for what the host does."""
        machine = self.session.machine
        return tuple(None if artifact is None else predict(artifact, machine).cycles for artifact in self.artifacts)

    def summary(self) -> str:
        """The plan for people: kernels and copies with what they cost, buffers with their lives, memory."""
        copies = [step for step in self.steps if isinstance(step, CopyStep)]
        flits = sum(artifact.flit_count for artifact in self.artifacts if artifact)
        cycles = sum(filter(None, self.predicted))
        lines = [
            f"{self.name} for {self.session.machine.name}: {counted(len(self.steps) - len(copies), 'kernel')}, "
            f"{counted(len(copies), 'copy', plural='copies')}, {counted(flits, 'flit')}, {counted(cycles, 'cycle', form=',')} predicted"
        ]
        for number, (step, artifact, time) in enumerate(zip(self.steps, self.artifacts, self.predicted, strict=True)):
            cost = "by the HOST" if artifact is None else f"{counted(artifact.flit_count, 'flit')}, {counted(time, 'cycle', form=',')}"
            lines.append(f"step {number:3} stages {step.stages.start}-{step.stages.stop - 1} {self._text(step)}: {cost}")
        for slot in sorted(self.slots.values(), key=lambda slot: (slot.image.address, slot.life or (-1, -1))):
            life = f"stages {slot.life[0]}-{slot.life[1]}" if slot.life else "always" + " (cleared)" * slot.cleared
            lines.append(
                f"buffer {slot.image.address:#010x} {slot.image.bytes:8} B {slot.role:8} {slot.name:28} "
                f"{slot.image.layout.key:16} {life}"
            )
        own = sum(pages(slot.image.bytes) for slot in self.own)
        stays = sum(pages(slot.image.bytes) for slot in self.slots.values() if slot.role in ("pinned", "constant"))
        moved = sum(self.slots[step.target].image.bytes for step in copies)
        by_host = sum(artifact is None for artifact in self.artifacts)
        lines += [
            f"copies  {moved} bytes in another order, {by_host} of {len(copies)} by the host",
            f"memory  {stays} bytes pinned; the plan's own {own} bytes packed in {sum(end - first for first, end in self.spans)}",
            f"peak    {self.peak_bytes} of {self.session.machine.memory.bytes} bytes",
        ]
        return "\n".join(lines)

    def _text(self, step: Step) -> str:
        if isinstance(step, CopyStep):
            source, target = self._source(step), self.slots[step.target].image
            return f"copy {step.source} ({source.layout.key}) as {target.layout.key} for {step.call.name}"
        operands = ", ".join(f"{port}={tensor.name}" for port, tensor in step.call.operands.items())
        return f"{step.call.kernel.name}({operands}) -> {', '.join(tensor.name for tensor in step.call.results.values())}"


def said(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def step_name(step: Step) -> str:
    return f"copy {step.target}" if isinstance(step, CopyStep) else step.call.name
