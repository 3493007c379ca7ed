"""The host as a device: compiled code for each kernel and block, workgroups over worker threads.

Checked builds, which are the default, find undefined behaviour and end the launch with it; `XPU_UB_TRAPS=off`
compiles without the checks. `XPU_CPU_WORKERS` caps the threads, `XPU_CPU_WAVE_WIDTH` sets the lanes of kernels that
declare none.
"""

from __future__ import annotations

import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np

from kohakutpu.backends.arguments import pack, refuse
from kohakutpu.backends.lowering import Unlowered
from kohakutpu.xpu import tree
from kohakutpu.xpu.errors import Undefined, XpuError, XpuLaunchError
from kohakutpu.xpu.kernel import Backend, Kernel
from kohakutpu.xpu.kernel import Unlowered as Held
from kohakutpu.xpu.launch import REASONS, RUNTIME, Geometry, Request

from .compiler import Code, compile_kernel, emit, host_width, planted

SERIAL_BELOW = 4096  # work-items that are not worth a second thread
CHUNKS = 4  # of a worker, so that one that is held up does not hold up the launch
PROBE = (64, 1, 1)
BROKEN_ALIGN = 8
COMMUTE = ("add", "sub", "min", "max", "and", "or", "xor")


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def number_of(name: str, fallback: int) -> int:
    """A positive number from the environment."""
    text = os.environ.get(name)
    if not text:
        return fallback
    if not text.isdecimal() or int(text) < 1:
        raise XpuError(f"{name}={text!r}: a positive number is expected")
    return int(text)


def checked_build() -> bool:
    """Whether code is compiled with its checks."""
    text = os.environ.get("XPU_UB_TRAPS", "on")
    if text not in ("on", "off"):
        raise XpuError(f"XPU_UB_TRAPS={text!r}: on or off is expected")
    return text == "on"


@cache
def pool(workers: int) -> ThreadPoolExecutor:
    """The worker threads."""
    return ThreadPoolExecutor(workers, "xpu-cpu")


def ordered(program: tree.Program) -> bool:
    """True for a kernel whose atomics show the order of its workgroups, which then run on one thread.

    Integer atomics of one kind commute where nobody looks at the old value; two kinds may meet in one memory.
    """
    kinds = set()
    nodes = [n for function in program.functions for s in function.body for n in tree.walk(s)]
    unused = {id(n.value) for n in nodes if isinstance(n, tree.Evaluate)}
    for node in nodes:
        if not isinstance(node, tree.Invoke) or not node.verb.startswith("memory.atomic"):
            continue
        if node.arguments[0].variable.kind == "shared":
            continue
        op = node.verb.removeprefix("memory.atomic_")
        if id(node) not in unused or op not in COMMUTE or node.type.kind == "float":
            return True
        kinds.add("add" if op == "sub" else op)
    return len(kinds) > 1


class CpuBackEnd:
    """Compiles on the first launch of a kernel with a block, and keeps the code."""

    name = "cpu"

    def __init__(self):
        self._codes: WeakKeyDictionary[Kernel, dict] = WeakKeyDictionary()
        self._refusals: WeakKeyDictionary[Kernel, str | None] = WeakKeyDictionary()
        self._scratch = threading.local()
        self.last_workers = 0

    def available(self) -> bool:
        """Always: the package is not imported without its compiler."""
        return True

    def geometry(self) -> Geometry:
        """The host: cores as multiprocessors, lanes of 32 bits as the wave."""
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return Geometry(multiprocessors=available_cores(), simds_per_multiprocessor=1, wave_size=self.wave_size(),
                        memory_bytes=pages * size, integrated=1)  # fmt: skip

    def wave_size(self) -> int:
        """Lanes of a kernel that declares none."""
        width = number_of("XPU_CPU_WAVE_WIDTH", host_width())
        if width & (width - 1) or width > 64:
            raise XpuError(f"XPU_CPU_WAVE_WIDTH={width}: a power of two from 1 to 64 is expected")
        return width

    def width_of(self, kernel: Kernel) -> int:
        """Lanes that a kernel is built at."""
        return kernel.wave_width or self.wave_size()

    def refusal(self, kernel: Kernel) -> str | None:
        """Why there is no code for a kernel, or None. Asked once: the answer depends on neither block nor checks."""
        if kernel not in self._refusals:
            self._refusals[kernel] = self._why_not(kernel)
        return self._refusals[kernel]

    def _why_not(self, kernel: Kernel) -> str | None:
        only, held = kernel.find(Backend), [a for a in kernel.annotations if isinstance(a, Held)]
        if only and self.name not in only.names:
            return f"@Backend{only.names} leaves it out"
        if any(one.backend == self.name and one.hold for one in held):
            return f"held by @Unlowered [tracked: {next(o.tracked for o in held if o.backend == self.name)}]"
        found = kernel.program_on("cpu").refusals
        if found:
            return f"{found[0]}{f', and {len(found) - 1} more' if len(found) > 1 else ''}"
        try:
            emit(kernel, PROBE, self.width_of(kernel), True, "")
        except Unlowered as unlowered:
            return str(unlowered)
        return None

    def code(self, kernel: Kernel, block: tuple, width: int, checked: bool) -> Code:
        """A kernel's code for a block, compiled the first time."""
        codes = self._codes.setdefault(kernel, {})
        key = (block, width, checked, planted())
        if key not in codes:
            try:
                codes[key] = compile_kernel(kernel, block, width, checked, planted())
            except Unlowered as unlowered:
                raise XpuLaunchError(kernel.name, self.name, 0, REASONS[0], str(unlowered)) from None
        return codes[key]

    def run(self, request: Request) -> None:
        """To the end. Raises Undefined, or XpuLaunchError for a broken align statement, in a checked build."""
        execute(self, request, self.width_of(request.kernel), checked_build())

    def scratch(self, size: int) -> int:
        """The address of a thread's own scratch memory, at least so large, aligned to 64 bytes."""
        held = getattr(self._scratch, "bytes", None)
        if held is None or len(held) < size + 64:
            held = self._scratch.bytes = np.empty(size + 64, np.uint8)
        return -(-held.ctypes.data // 64) * 64


def execute(backend: CpuBackEnd, request: Request, width: int, checked: bool) -> None:
    """Run a launch with waves of `width` lanes, by checked code or not."""
    kernel, program = request.kernel, request.kernel.program_on(backend.name)
    if program.refusals:
        raise refuse(program, str(program.refusals[0]))
    packed, arrays = pack(program, request.arguments)
    code = backend.code(kernel, request.block, width, checked)
    total = request.grid[0] * request.grid[1] * request.grid[2]
    if total >= 1 << 63:
        raise refuse(program, f"grid={request.grid}: workgroups past 63 bits")
    items = request.block[0] * request.block[1] * request.block[2]
    workers = min(number_of("XPU_CPU_WORKERS", available_cores()), total)
    if total * items < SERIAL_BELOW or (code.atomic and ordered(program)):
        workers = 1
    backend.last_workers = workers
    shared = request.shared_bytes

    def part(bounds: tuple[int, int]) -> bytes:
        record = np.zeros(16, np.int64)
        size = code.scratch_bytes + 2 * -(-shared // 64) * 64 + 64
        scratch = backend.scratch(size)
        record[8] = scratch + code.scratch_bytes
        code.run(packed.ctypes.data, *bounds, *request.grid, scratch, shared, record.ctypes.data)
        return record.tobytes()

    if workers == 1:
        records = [part((0, total))]
    else:
        edges = [total * n // (workers * CHUNKS) for n in range(workers * CHUNKS + 1)]
        records = list(pool(workers).map(part, zip(edges, edges[1:], strict=False)))
    del arrays
    report(backend, request, code, [struct.unpack("<16q", record) for record in records])


def report(backend: CpuBackEnd, request: Request, code: Code, records: list[tuple]) -> None:
    """Raise what the lowest workgroup found, else the first broken promise."""
    trapped = min((record[:5] for record in records if record[0]), key=lambda r: r[1], default=None)
    if trapped:
        site = code.sites[trapped[0] - 1]
        text, where = shown(site, trapped[3:]), place(request, trapped[1], trapped[2])
        if site.refused:
            detail = f"{text} ({site.at}): {where}"
            raise XpuLaunchError(request.kernel.name, backend.name, 0, REASONS[0], detail)
        raise Undefined(text, site.at, where)
    broken = min((record[9:14] for record in records if record[9]), key=lambda r: r[1], default=None)
    if broken:
        site = code.sites[broken[0] - 1]
        detail = f"{shown(site, broken[3:])} ({site.at}): {place(request, broken[1], broken[2])}"
        raise XpuLaunchError(request.kernel.name, backend.name, BROKEN_ALIGN, REASONS[BROKEN_ALIGN], detail)


def shown(site, numbers: tuple) -> str:
    """A site's text with its values."""
    values = []
    for kind, number in zip(site.kinds, numbers, strict=False):
        if kind.kind == "float":
            values.append(struct.unpack("<d", struct.pack("<q", number))[0])
        else:
            values.append(number if kind.signed or number >= 0 else number + (1 << 64))
    return site.text.format(*values)


def place(request: Request, group: int, item: int) -> str:
    """A workgroup and a work-item by their linear numbers."""
    corners = []
    for number, extent in ((group, request.grid), (item, request.block)):
        corners.append((number % extent[0], number // extent[0] % extent[1], number // (extent[0] * extent[1])))
    return f"workgroup {corners[0]}, work-item {corners[1]}"


CPU = CpuBackEnd()
RUNTIME.register(CPU)
