"""Launching a kernel: streams, events, back ends and their choice (spec/xpu.md 5.1 to 5.5).

A back end registers itself when its package is imported. Streams run what they are given at once; what a launch uses
stays borrowed until the stream is synced, so that freeing it too early is found.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .errors import XpuError, XpuLaunchError
from .kernel import Kernel
from .memory import KernelBuffer
from .recording import recorded
from .tree import DeclareShared, walk
from .types import BufferType

REASONS = (
    "no device code registered",
    "a buffer base not aligned to the words the kernel reads",
    "only the scalar build of a wave kernel is available",
    "unsupported declared wave width",
    "the block differs from the one the kernel is pinned to",
    "deadline missed",
    "too many threads",
    "too much shared memory",
    "a broken align statement",
    "a view at an offset that the device cannot bind",
)
ORDER = ("cpu", "ktpu", "reference")


@dataclass(frozen=True)
class Geometry:
    """What a device reports of itself. Zero means not reported, and is never a limit."""

    multiprocessors: int = 0
    simds_per_multiprocessor: int = 0
    wave_size: int = 0
    max_threads_per_block: int = 0
    shared_bytes_per_block: int = 0
    shared_bytes_per_block_opt_in: int = 0
    shared_bytes_per_multiprocessor: int = 0
    max_blocks_per_multiprocessor: int = 0
    l2_cache_bytes: int = 0
    memory_bytes: int = 0
    integrated: int = 0
    registers_per_multiprocessor: int = 0
    threads_per_multiprocessor: int = 0
    max_grid_x: int = 0
    max_block_x: int = 0
    waves_per_simd_target: int = 1
    clock_khz: int = 0
    memory_clock_khz: int = 0
    memory_bus_bits: int = 0

    @property
    def simds(self) -> int:
        """All SIMD units; 0 if either count is not reported."""
        return self.multiprocessors * self.simds_per_multiprocessor

    def dispatch_blocks(self, waves_per_block: int) -> int:
        """The fewest blocks that fill the device; 0 if it does not report its SIMD units."""
        return self.simds * self.waves_per_simd_target // waves_per_block

    @property
    def peak_bandwidth_gbps(self) -> float:
        """Memory's peak in GB/s; 0 if not reported."""
        return 2 * self.memory_clock_khz * 1000 * self.memory_bus_bits / 8 / 1e9


@dataclass(frozen=True)
class Request:
    """A launch as a back end gets it: grid in workgroups, block in work-items, checked arguments in order."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple


class BackEnd(Protocol):
    """What a package registers."""

    name: str

    def available(self) -> bool:
        """True if it can run here."""

    def geometry(self) -> Geometry:
        """What its device reports."""

    def refusal(self, kernel: Kernel) -> str | None:
        """Why it has no code for a kernel, or None."""

    def run(self, request: Request) -> int | None:
        """Run to the end. Gives simulated cycles, where the device has them."""


class Runtime:
    """The back ends of a process and the one that is used, chosen at the first touch."""

    def __init__(self):
        self.registered: dict[str, BackEnd] = {}
        self._active: BackEnd | None = None
        self._forced: str | None = None

    def register(self, backend: BackEnd) -> None:
        """Add a back end."""
        self.registered[backend.name] = backend

    def force(self, name: str) -> None:
        """Use only this back end. Refused after the first touch."""
        if self._active is not None:
            raise XpuError(f"force({name!r}) after the first touch, which chose {self._active.name}")
        self._forced = name

    def active(self) -> BackEnd:
        """The back end in use; asking is a touch. One that is forced and not there gives way, with one note."""
        if self._active is None:
            usable = [name for name in ORDER if name in self.registered and self.registered[name].available()]
            forced = self._forced or os.environ.get("XPU_BACKEND")
            if forced and forced not in usable:
                have = ", ".join(usable) or "none"
                instead = f"; {usable[0]} is used instead" if usable else ""
                print(
                    f"note: XPU back end {forced} is not available among those imported ({have}){instead}",
                    file=sys.stderr,
                )
            if not usable:
                raise XpuError("no XPU back end is registered: import kohakutpu.reference.xpu, or another")
            self._active = self.registered[forced if forced in usable else usable[0]]
        return self._active

    def kernel_available(self, kernel: Kernel) -> bool:
        """True if the active back end has code for a kernel whose static Shared memory fits its device."""
        backend = self.active()
        limit = backend.geometry().shared_bytes_per_block
        return backend.refusal(kernel) is None and (not limit or static_shared(kernel) <= limit)


RUNTIME = Runtime()


def static_shared(kernel: Kernel) -> int:
    """The bytes of the Shared arrays with constant sizes that a kernel and its helpers declare."""
    total = 0
    for function in kernel.program.functions:
        for node in (node for statement in function.body for node in walk(statement)):
            if isinstance(node, DeclareShared) and not node.dynamic:
                total += node.count.value * node.variable.type.element.size
    return total


def lane_block(runtime: Runtime = RUNTIME) -> int:
    """The lanes of the active device's wave; 0 if it has none of its own."""
    return runtime.active().geometry().wave_size


def lane_block_of(kernel: Kernel, runtime: Runtime = RUNTIME) -> int:
    """The wave width that a kernel is built at: the declared one, else the device's."""
    return kernel.wave_width or lane_block(runtime)


def row_grid(rows: int) -> int:
    """The grid of a kernel that takes a row per workgroup."""
    return rows


class KernelStream:
    """An order of launches. `current()` is the thread's own; `create()` makes another."""

    _local = threading.local()

    def __init__(self, runtime: Runtime = RUNTIME):
        self.runtime, self._borrowed, self._destroyed = runtime, [], False
        self.cycles = 0

    @classmethod
    def current(cls) -> KernelStream:
        """This thread's default stream."""
        if not hasattr(cls._local, "stream"):
            cls._local.stream = cls()
        return cls._local.stream

    @classmethod
    def create(cls) -> KernelStream:
        """A stream of its own."""
        return cls()

    def check(self) -> None:
        """Refuse a destroyed stream."""
        if self._destroyed:
            raise XpuError("this stream was destroyed")

    def borrow(self, buffers: Sequence[KernelBuffer]) -> None:
        """Keep the allocations of a launch until the stream is synced."""
        for buffer in buffers:
            buffer.allocation.borrowers.add(self)
            self._borrowed.append(buffer.allocation)

    def sync(self) -> None:
        """Wait until everything given to the stream has run."""
        self.check()
        for allocation in self._borrowed:
            allocation.borrowers.discard(self)
        self._borrowed.clear()

    def wait_for(self, event: Event) -> None:
        """Run later work after an event of another stream."""
        self.check()
        if event.when is None:
            raise XpuError("wait_for an event that no stream recorded")

    def destroy(self) -> None:
        """Sync, and refuse further use."""
        self.sync()
        self._destroyed = True


class Event:
    """A point in a stream: `when` is the host's clock in ns, `cycles` the simulated cycles so far."""

    def __init__(self):
        self.when: int | None = None
        self.cycles = 0

    def record(self, stream: KernelStream) -> None:
        """Mark the stream's present end."""
        stream.check()
        self.when, self.cycles = time.perf_counter_ns(), stream.cycles


def _extent(kernel: Kernel, backend: str, what: str, value) -> tuple[int, int, int]:
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(numbers) <= 3 or not all(type(n) is int and n >= 1 for n in numbers):
        raise XpuError(f"{kernel.name} on {backend}: {what}={value!r}: one to three positive integers are expected")
    return (*numbers, 1, 1)[:3]


def requested(kernel: Kernel, backend: BackEnd, grid, block, shared_bytes: int, arguments: tuple) -> Request:
    """A launch that a back end's device takes. Raises XpuLaunchError with its reason."""

    def refuse(code: int, detail: str) -> XpuLaunchError:
        return XpuLaunchError(kernel.name, backend.name, code, REASONS[code], detail)

    grid, block = _extent(kernel, backend.name, "grid", grid), _extent(kernel, backend.name, "block", block)
    threads, geometry = block[0] * block[1] * block[2], backend.geometry()
    why = backend.refusal(kernel)
    if why:
        raise refuse(0, why)
    if geometry.max_threads_per_block and threads > geometry.max_threads_per_block:
        raise refuse(6, f"{threads} in a block, {geometry.max_threads_per_block} at most")
    ceiling = kernel.ceiling(kernel.wave_width or geometry.wave_size or 1)
    if ceiling is not None and threads > ceiling:
        raise refuse(4, f"{threads} work-items, where Occupancy declares {ceiling} at most")
    shared = static_shared(kernel) + shared_bytes
    limit = max(geometry.shared_bytes_per_block, geometry.shared_bytes_per_block_opt_in)
    if limit and shared > limit:
        raise refuse(7, f"{shared} bytes, {limit} at most")
    for parameter, value in zip(kernel.program.kernel.parameters, arguments, strict=False):
        if isinstance(parameter.type, BufferType) and isinstance(value, KernelBuffer):
            if value.offset % parameter.type.element.size:
                raise refuse(1, f"{parameter.name} begins at byte {value.offset}")
    return Request(kernel, grid, block, shared_bytes, arguments)


def bind(kernel: Kernel, stream: KernelStream | None, grid, block, shared_bytes) -> Callable:
    """`kernel.launch(stream, grid=, block=, shared_bytes=)`: the call that takes the arguments and launches.

    `grid` counts workgroups, `block` work-items, one to three numbers each. Raises XpuLaunchError with its reason.
    """
    stream = stream or KernelStream.current()
    stream.check()
    backend = stream.runtime.active()

    extents = [_extent(kernel, backend.name, *part) for part in (("grid", grid), ("block", block))]

    def call(*arguments) -> None:
        request = requested(kernel, backend, *extents, shared_bytes or 0, arguments)
        stream.borrow([value for value in arguments if isinstance(value, KernelBuffer)])
        with recorded(request, backend.name, kernel.wave_width or backend.geometry().wave_size):
            cycles = backend.run(request)
        stream.cycles += cycles or 0

    return call
