"""The machine as a device: launches as vector programs, run on the cycle models through the orchestrator's registers.

`XPU_KTPU_MACHINE` names the machine (quad). Every launch brings its memory to the machine, runs, and brings back the
elements that the kernel stored.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import numpy as np

from kohakutpu.backends.arguments import pack as check_arguments
from kohakutpu.backends.arguments import scalar_bits
from kohakutpu.backends.lowering import Unlowered
from kohakutpu.compiler.artifact import Artifact
from kohakutpu.host.driver import Driver
from kohakutpu.host.loader import Loader, Run
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.lang.source import KernelError
from kohakutpu.machine import Machine, load
from kohakutpu.model.system import System
from kohakutpu.xpu import tree
from kohakutpu.xpu.errors import Refusal, XpuLaunchError
from kohakutpu.xpu.kernel import Backend, Kernel
from kohakutpu.xpu.kernel import Unlowered as Held
from kohakutpu.xpu.launch import REASONS, RUNTIME, Geometry, Request
from kohakutpu.xpu.memory import KernelBuffer
from kohakutpu.xpu.types import BufferType, FunctionType, TileType

from .instructions import LANES, WORD
from .memory import Buffer
from .phases import SLOT, programs
from .programs import DoesNotFit, shaped
from .target import KtpuTarget
from .tiles import Product, TileTarget, compiled
from .work import Work, worked


class Lowered:
    """A launch as artifacts, run one after another.

    `memories` are the allocations' bytes, and last the floats that wait between phases. A part has its `artifact`,
    makes its operands from memory as it then is, and brings its results back.
    """

    def __init__(self, request: Request, machine: Machine):
        self.request, self.machine = request, machine
        self.program = request.kernel.program_on(KtpuBackEnd.name)
        check_arguments(self.program, request.arguments)
        self.memories: list[np.ndarray] = []
        self.arguments = [self.argument(p, v) for p, v in
                          zip(self.program.kernel.parameters, request.arguments, strict=True)]  # fmt: skip
        try:
            self.parts: list[Product | Work] = self.in_phases() if self.has_tiles() else [self.vector_work()]
        except DoesNotFit as why:
            raise Unlowered(Refusal(f"XPU-N01: {why}", self.program.kernel.at)) from None
        except KernelError as error:
            raise Unlowered(Refusal(f"XPU-N04: {error}", self.program.kernel.at)) from None
        self.artifacts = [part.artifact for part in self.parts]

    def has_tiles(self) -> bool:
        """True for a kernel that declares a cooperative matrix: its work is the clusters'."""
        functions = self.program.functions
        nodes = (node for function in functions for s in function.body for node in tree.walk(s))
        return any(isinstance(node, tree.Declare) and isinstance(node.variable.type, TileType) for node in nodes)

    def workgroups(self) -> list[tuple[int, int, int]]:
        """Every workgroup's place in the grid, in order."""
        return [(x, y, z) for z, y, x in itertools.product(*(range(n) for n in reversed(self.request.grid)))]

    def in_phases(self) -> list[Product | Work]:
        """Products and vector work, each phase of all workgroups after the one before."""
        request, program = self.request, self.program
        targets = []
        for place in self.workgroups():
            targets.append(TileTarget(program, self.arguments, request.grid, request.block, place))
            targets[-1].run()
        self.apart(targets)
        order = [phase.tiles for phase in targets[0].phases]
        if any([phase.tiles for phase in target.phases] != order for target in targets):
            self.refuse(targets[0], "workgroups that take turns of clusters and vector work in different orders")
        if not any(phase.jobs for target in targets for phase in target.phases):
            self.refuse(targets[0], "cooperative matrices of which none is stored")
        scratch, most = len(self.memories), 0
        codes = []
        for number, target in enumerate(targets):
            # Slot by slot, the workgroups side by side: the same step from one to the next for all.
            def slot(which: int, number=number) -> tuple[int, int]:
                return scratch, (which * len(targets) + number) * SLOT // WORD

            found, filled, slots = programs(target.code, target.phases, slot)
            most = max(most, slots)
            codes.append((found, [[slot(which) for which in several] for several in filled]))
        if most:
            self.memories.append(np.zeros(most * len(targets) * SLOT, np.uint8))
        parts: list[Product | Work] = []
        for n, tiles in enumerate(order):
            if tiles:
                parts += self.products(targets, n)
                continue
            groups = [shaped(number, found[n]) for number, (found, _) in enumerate(codes)]
            stored = [part for target in targets for part in target.phases[n].stores]
            stored += [(memory, word * WORD, SLOT) for _, filled in codes for memory, word in filled[n]]
            if stored:
                parts.append(worked(program, self.machine, [len(m) for m in self.memories], groups, stored))
        return parts

    def apart(self, targets: list[TileTarget]) -> None:
        """No workgroup may touch what another stores: float16s by tiles, whole words by vector work."""
        owner: dict[tuple[int, int], int] = {}
        for number, target in enumerate(targets):
            words = [place for phase in target.phases for place in phase.stored]
            for place in {*target.written, *((m, word * LANES + half) for m, word in words for half in range(LANES))}:
                if owner.setdefault(place, number) != number:
                    self.refuse(target, "tiles that overlap where they are stored")
        for number, target in enumerate(targets):
            words = [place for phase in target.phases for place in phase.loaded]
            for place in {*target.fetched, *((m, word * LANES + half) for m, word in words for half in range(LANES))}:
                if owner.get(place, number) != number:
                    self.refuse(target, "tiles that are read where others are stored")

    def products(self, targets: list[TileTarget], phase: int) -> list[Product]:
        """A phase's products, those of one shape together. No tile may be read that another stores."""
        jobs: dict[tuple, list] = {}
        written: set = set()
        read: set = set()
        for target in targets:
            for job in target.phases[phase].jobs:
                jobs.setdefault(job.shape, []).append(job)
                touched = set(job.to.halves(job.rows, job.cols))
                if written & touched:
                    self.refuse(target, "tiles that overlap where they are stored")
                written |= touched
                read.update(*(halves for _, halves in job.operands()))
        if written & read:
            self.refuse(targets[0], "tiles that are read where others are stored")
        return [compiled(same, self.machine) for same in jobs.values()]

    def argument(self, parameter, value):
        """A parameter's value for the target."""
        kind = parameter.type
        if isinstance(kind, BufferType):
            array = value.array if isinstance(value, KernelBuffer) else value
            base = value.allocation.bytes if isinstance(value, KernelBuffer) else whole(array)
            number = next((n for n, memory in enumerate(self.memories) if memory is base), None)
            if number is None:
                number = next((n for n, m in enumerate(self.memories) if np.may_share_memory(m, base)), None)
                if number is None:
                    self.memories.append(base.view(np.uint8).reshape(-1))
                    number = len(self.memories) - 1
            start = array.ctypes.data - self.memories[number].ctypes.data
            return Buffer(parameter.name, kind.element, number, start, len(array))
        if isinstance(kind, FunctionType):
            return int.from_bytes(scalar_bits(self.program, parameter, value)[:4], "little")
        return value

    def vector_work(self) -> Work:
        """Every workgroup's program; no workgroup may touch what another stores."""
        request, found, stores = self.request, [], []
        owner: dict[tuple[int, int], int] = {}
        seen: dict[tuple[int, int], set] = {}
        for number, at in enumerate(self.workgroups()):
            target = KtpuTarget(self.program, self.arguments, request.grid, request.block, at)
            code = target.run()
            for place in target.stored:
                other = owner.setdefault(place, number)
                readers = seen.get(place, set()) - {number}
                if other != number or readers:
                    self.refuse(target, "workgroups that touch one word of memory, which one of them stores")
            for place in target.loaded:
                seen.setdefault(place, set()).add(number)
                if owner.get(place, number) != number:
                    self.refuse(target, "workgroups that touch one word of memory, which one of them stores")
            stores += target.stores
            found.append(shaped(number, code))
        return worked(self.program, self.machine, [len(memory) for memory in self.memories], found, stores)

    @staticmethod
    def refuse(target: KtpuTarget, what: str) -> None:
        """A refusal of the whole launch."""
        raise Unlowered(Refusal(f"XPU-N01: {what}", target.program.kernel.at))

    def run(self, execute: Callable[[Artifact, dict], Run]) -> int:
        """Every artifact through `execute`, which gives a loader's Run. Gives the cycles."""
        cycles = 0
        for part in self.parts:
            done = execute(part.artifact, part.operands(self.memories))
            part.bring(self.memories, done.outputs)
            cycles += int(done.elapsed)
        return cycles


def whole(array: np.ndarray) -> np.ndarray:
    """The array that owns an array's memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class KtpuBackEnd:
    """Lowers a launch when it comes: its program holds the launch's numbers."""

    name = "ktpu"

    def __init__(self, machine: str | None = None):
        self._machine = machine

    def machine(self) -> Machine:
        """The machine that launches run on."""
        return load(self._machine or os.environ.get("XPU_KTPU_MACHINE", "quad"))

    def available(self) -> bool:
        """Always: the device is simulated."""
        return True

    def geometry(self) -> Geometry:
        """Vector cores as multiprocessors, 16 lanes, the machine's memory."""
        machine = self.machine()
        return Geometry(multiprocessors=len(machine.vectors), simds_per_multiprocessor=1, wave_size=LANES,
                        memory_bytes=machine.memory.bytes)  # fmt: skip

    def refusal(self, kernel: Kernel) -> str | None:
        """Why no launch of a kernel could run; what depends on a launch is refused by it."""
        only = kernel.find(Backend)
        if only and self.name not in only.names:
            return f"@Backend{only.names} leaves it out"
        held = [a for a in kernel.annotations if isinstance(a, Held) and a.backend == self.name and a.hold]
        if held:
            return f"held by @Unlowered [tracked: {held[0].tracked}]"
        found = kernel.program_on(KtpuBackEnd.name).refusals
        return f"{found[0]}{f', and {len(found) - 1} more' if len(found) > 1 else ''}" if found else None

    def lower(self, request: Request) -> Lowered:
        """A launch's artifact. Raises XpuLaunchError with the refusal, or Undefined."""
        kernel = request.kernel
        if kernel.wave_width not in (None, LANES):
            detail = f"@Wave({kernel.wave_width}), and the machine's waves have {LANES} lanes"
            raise XpuLaunchError(kernel.name, self.name, 3, REASONS[3], detail)
        try:
            return Lowered(request, self.machine())
        except Unlowered as unlowered:
            reason = unlowered.reason
            raise XpuLaunchError(kernel.name, self.name, reason, REASONS[reason], str(unlowered)) from None

    def run(self, request: Request) -> int:
        """On the cycle models. Gives the cycles."""
        lowered = self.lower(request)
        return lowered.run(Loader(Driver(ModelTransport(System(lowered.machine)))).run)


KTPU = KtpuBackEnd()
RUNTIME.register(KTPU)
