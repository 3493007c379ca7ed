"""A session with one machine: what stays in its memory, and what kernels were compiled to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from threading import RLock

import numpy as np

from kohakutpu.compiler import Artifact, BufferImage, Options, prepare
from kohakutpu.compiler.compile import Compilation
from kohakutpu.compiler.layouts import Layout
from kohakutpu.compiler.padding import Dirt
from kohakutpu.host.driver import Driver
from kohakutpu.host.loader import Loader
from kohakutpu.host.transport import Transport
from kohakutpu.lang.kernel import Kernel, tells_all
from kohakutpu.lang.source import Source
from kohakutpu.machine import Machine

from .graph import DECIDED, Call, Graph, trace
from .plan import Plan
from .planning import Slot, pages
from .recent import Recent
from .tensors import SessionError, Tensor, caller, patterns


KEPT = 256  # compiled kernels, and artifacts, that a session has at hand


class Alone:
    """Held by the thread that plans or runs; refuses others, which would write into its trace or between its flits."""

    def __init__(self, session: Session):
        self._session = session
        self._lock = RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise SessionError(f"{self._session.name} is at work in another thread: one at a time may use it", caller())

    def __exit__(self, *_) -> None:
        self._lock.release()


class Session:
    """Tensors and plans on one machine, through any `Transport`; without one, plans can be made and not run.

    Its memory is the session's alone: pinned tensors, what plans need, and results of calls have pages of their own until
    they are freed. `timeout` is the driver's. `kept` compiled kernels, and as many lists of instructions, are at hand for
    calls that come again, besides those of plans; the ones that were longest not used go first.
    """

    def __init__(self, machine: Machine, transport: Transport | None = None, *, name: str = "session",
                 timeout: float | None = None, kept: int = KEPT):  # fmt: skip
        if isinstance(kept, bool) or not isinstance(kept, int) or kept < 1:
            raise SessionError(f"kept={kept!r}: how many compiled kernels are at hand, an integer of at least 1", caller())
        self.machine = machine
        self.name = name
        self.tracing: Graph | None = None
        self.interrupted: str | None = None  # what stopped in the middle of a kernel
        self.alone = Alone(self)
        self.plans: list[Plan] = []
        self._loader = None if transport is None else Loader(Driver(transport, timeout=timeout))
        self._pins: dict[str, Tensor] = {}
        self._slots: dict[tuple[Tensor, Layout, int], Slot] = {}  # of pinned tensors
        self._constants: dict[bytes, Slot] = {}
        self._results: dict[str, Tensor] = {}
        self._compiled: Recent[Compilation] = Recent(kept)
        self._artifacts: Recent[Artifact] = Recent(kept)
        self._calls = 0

    def __repr__(self) -> str:
        return f"<session {self.name} on {self.machine.name}>"

    @property
    def loader(self) -> Loader:
        if self._loader is None:
            raise SessionError(f"{self.name} has no transport: plans can be made, nothing can be run or read", caller())
        return self._loader

    def require_whole(self, source: Source) -> None:
        """Refuse a machine that was left in the middle of a kernel: its units may still compute, or wait for flits."""
        if self.interrupted is not None:
            raise SessionError(f"{self.interrupted}; the machine is as that left it: reset it, and begin another session", source)

    @property
    def names(self) -> set[str]:
        """Of everything that stays in memory: tensors, and their images and constants in plans."""
        return {*self._pins, *self._results, *(slot.name for slot in (*self._slots.values(), *self._constants.values()))}

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor is the result of a call, which has its name in the session and no plan."""
        return self._results.get(tensor.name) is tensor

    # ---- tensors ----

    def pin(self, name: str, array: np.ndarray) -> Tensor:
        """An array (float16, or uint16 bit patterns) that stays in memory, in every byte order that kernels read it in.

        Its bytes are copied; they go to the machine when something first runs that reads them.
        """
        if not isinstance(name, str) or not name:
            raise SessionError(f"{name!r} is no name for a tensor", caller())
        for holder in (self, self.tracing):
            if holder is not None and name in holder.names:
                raise SessionError(f"{holder.name} has a tensor {name} already", caller())
        held = patterns(name, array)
        self._pins[name] = Tensor(self, name, held.shape, "pinned", array=held)
        return self._pins[name]

    def release(self, tensor: Tensor) -> None:
        """Give a tensor's pages back (`Tensor.free`)."""
        if tensor.base is not None:
            raise SessionError(f"{tensor.name} is a view: free {tensor.base.name}", caller())
        if tensor.kind == "pinned":
            self._pins.pop(tensor.name)
            self._slots = {key: slot for key, slot in self._slots.items() if key[0].root is not tensor}
        elif tensor.name in self._results:
            self._results.pop(tensor.name)
        else:
            raise SessionError(f"{tensor.name} belongs to {tensor.graph.name}: free the plan", caller())

    # ---- what plans use ----

    def pinned(self, tensor: Tensor, image: BufferImage, fresh: Callable[[str], str]) -> Slot:
        """The image of a pinned tensor in the order of `image`; `fresh` makes a name that nothing else has."""
        key = tensor, image.layout, image.copies
        if key not in self._slots:
            others = any(slot.tensor is tensor for slot in self._slots.values())
            name = fresh(f"{tensor.name}@{image.layout.key}") if others or tensor.base is not None else tensor.name
            image = replace(image, name=name, role="in", shape=tensor.shape, address=0)
            self._slots[key] = Slot(name, "pinned", image, tensor)
        return self._slots[key]

    def constant(self, image: BufferImage, fresh: Callable[[str], str]) -> Slot:
        """The one image of a constant of these contents; `fresh` as in `pinned`."""
        contents = image.contents()
        if contents not in self._constants:
            name = fresh(f"constant:{len(self._constants)}")
            self._constants[contents] = Slot(name, "constant", replace(image, name=name, address=0))
        return self._constants[contents]

    def forget_unplaced(self) -> None:
        """Drop what a plan that came to nothing would have kept in memory."""
        self._slots = {key: slot for key, slot in self._slots.items() if slot.placed}
        self._constants = {key: slot for key, slot in self._constants.items() if slot.placed}

    def kept(self) -> list[Slot]:
        """Pinned tensors and constants that have an address."""
        return [slot for slot in (*self._slots.values(), *self._constants.values()) if slot.placed]

    def taken(self) -> list[tuple[int, int]]:
        """(first byte, end) of all pages in use."""
        images = [slot.image for slot in self.kept()] + [tensor.image for tensor in self._results.values()]
        spans = [(image.address, image.address + pages(image.bytes)) for image in images]
        return spans + [span for plan in self.plans for span in plan.spans]

    @property
    def peak_bytes(self) -> int:
        """The first byte behind everything in use."""
        return max((end for _, end in self.taken()), default=0)

    def prepared(self, call: Call, shapes: Mapping[str, tuple[int, ...]], layouts: Mapping[str, Layout] | None = None,
                 dirt: Dirt | None = None) -> tuple[Compilation, tuple]:  # fmt: skip
        """A kernel compiled up to addresses, once for each setting that is kept, and the key of that setting."""
        layouts, dirt, options = layouts or {}, dirt or Dirt(), call.options
        quiet = tuple(sorted(port for port, tensor in call.operands.items() if tensor.root.quiet))
        key = (
            call.kernel, tuple(sorted(shapes.items())),
            tuple(sorted(((n, repr(v) if tells_all(v) else object()) for n, v in call.knobs.items()), key=lambda i: i[0])),
            tuple((field.name, repr(getattr(options, field.name))) for field in fields(options) if field.name not in DECIDED),
            tuple(sorted(layouts.items(), key=lambda i: i[0])), tuple(sorted(dirt.rows)), tuple(sorted(dirt.columns.items())),
            quiet,
        )  # fmt: skip
        full = replace(options, layouts=dict(layouts))
        made = self._compiled.get(key, lambda: prepare(call.kernel, self.machine, shapes, call.knobs, full, dirt, quiet))
        return made, key

    def artifact(self, key: tuple, images: Mapping[str, BufferImage], make: Callable[[], Artifact]) -> Artifact:
        """The instructions for buffers at these addresses, made once as long as they are kept."""
        full = key, tuple((name, image.address) for name, image in images.items())
        return self._artifacts.get(full, make)

    # ---- models ----

    def plan(self, function: Callable[..., object], /, **shapes: tuple[int, ...]) -> Plan:
        """Plan a model function, whose inputs have these shapes: what it calls, every byte order, every address.

        The function is run once, on tensors without contents, and returns the results to keep: one, a tuple or a dict.
        Raises SessionError, with the line of the call, for everything that cannot be run as written.
        """
        name = getattr(function, "__name__", "model")
        with self.alone:
            plan = Plan(self, trace(self, function, name, shapes))
            self.plans.append(plan)
        return plan

    def at_once(self, kernel: Kernel, operands: Mapping[str, Tensor], knobs: Mapping[str, object], options: Options,
                source: Source) -> Mapping[str, Tensor]:  # fmt: skip
        """Run one kernel; its results keep pages of their own."""
        self.loader  # noqa: B018 - refuses before anything is compiled
        graph = Graph(self, kernel.name)
        results = graph.record(kernel, operands, knobs, options, source).results
        several = len(results) > 1
        for port, tensor in results.items():
            name = f"{kernel.name}:{self._calls}" + f".{port}" * several
            while name in self.names:
                name += "'"
            tensor.name = name
        graph.outputs = {tensor.name: tensor for tensor in results.values()}
        plan = Plan(self, graph)
        plan.run()
        self._calls += 1
        self._results |= graph.outputs
        return results
