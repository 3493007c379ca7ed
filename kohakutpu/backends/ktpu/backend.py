"""The machine as a device: launches as vector programs, run on the cycle models through the orchestrator's registers.

`XPU_KTPU_MACHINE` names the machine (quad). Every launch brings its memory to the machine, runs, and brings back the
elements that the kernel stored.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Mapping

import numpy as np

from kohakutpu.backends.arguments import pack as check_arguments
from kohakutpu.backends.arguments import scalar_bits
from kohakutpu.backends.lowering import Unlowered
from kohakutpu.compiler.artifact import Artifact, BufferImage, Stage, StatementRecord
from kohakutpu.compiler.core import CoreState
from kohakutpu.compiler.deal import deal
from kohakutpu.compiler.layouts import Flat
from kohakutpu.compiler.programs import l1_room
from kohakutpu.compiler.rounds import by_node, schedule
from kohakutpu.host.driver import Driver
from kohakutpu.host.loader import Loader, Run
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.lang.source import KernelError
from kohakutpu.machine import Machine, load, to_yaml
from kohakutpu.model.system import System
from kohakutpu.xpu import tree
from kohakutpu.xpu.errors import Refusal, XpuLaunchError
from kohakutpu.xpu.kernel import Backend, Kernel
from kohakutpu.xpu.kernel import Unlowered as Held
from kohakutpu.xpu.launch import REASONS, RUNTIME, Geometry, Request
from kohakutpu.xpu.memory import KernelBuffer
from kohakutpu.xpu.types import BufferType, FunctionType, TileType

from .programs import DoesNotFit, Group, mask_words, masks_of, packs, payloads, shaped
from .target import LANES, Buffer, KtpuTarget
from .tiles import Product, TileTarget, compiled

PAGE = 2048


class Lowered:
    """A launch as artifacts, run one after another.

    `memories` are the allocations' bytes, `stored` the (memory, byte, bytes) that the kernel stores.
    """

    def __init__(self, request: Request, machine: Machine):
        self.request, self.machine = request, machine
        self.program = request.kernel.program_on(KtpuBackEnd.name)
        check_arguments(self.program, request.arguments)
        self.memories: list[np.ndarray] = []
        self.arguments = [self.argument(p, v) for p, v in
                          zip(self.program.kernel.parameters, request.arguments, strict=True)]  # fmt: skip
        self.stored: list[tuple[int, int, int]] = []
        self.products: list[Product] = []
        self.artifacts = [product.artifact for product in self.multiply()] if self.has_tiles() else [self.lower()]

    def has_tiles(self) -> bool:
        """True for a kernel that declares a cooperative matrix: its work is the clusters'."""
        functions = self.program.functions
        nodes = (node for function in functions for s in function.body for node in tree.walk(s))
        return any(isinstance(node, tree.Declare) and isinstance(node.variable.type, TileType) for node in nodes)

    def multiply(self) -> list[Product]:
        """Every wave's product, those of one shape together. No tile may be read that another stores."""
        request, program = self.request, self.program
        jobs: dict[tuple, list] = {}
        written: dict[int, set] = {}
        read: dict[int, set] = {}
        for z, y, x in itertools.product(*(range(n) for n in reversed(request.grid))):
            target = TileTarget(program, self.arguments, request.grid, request.block, (x, y, z))
            target.run()
            for job in target.jobs:
                jobs.setdefault(job.shape, []).append(job)
                into = written.setdefault(job.to.buffer.memory, set())
                touched = set((job.to.indices(job.rows, job.cols) * 2 + job.to.buffer.start).ravel().tolist())
                if into & touched:
                    self.refuse(target, "tiles that overlap where they are stored")
                into |= touched
                for a, b, depth in job.products:
                    for place, shape in ((a, (job.rows, depth)), (b, (depth, job.cols))):
                        found = place.indices(*shape) * 2 + place.buffer.start
                        read.setdefault(place.buffer.memory, set()).update(found.ravel().tolist())
        if any(into & read.get(memory, set()) for memory, into in written.items()):
            raise Unlowered(Refusal("XPU-N01: tiles that are read where others are stored", program.kernel.at))
        if not jobs:
            raise Unlowered(Refusal("XPU-N01: cooperative matrices of which none is stored", program.kernel.at))
        try:
            self.products = [compiled(same, self.machine) for same in jobs.values()]
        except KernelError as error:
            raise Unlowered(Refusal(f"XPU-N04: {error}", program.kernel.at)) from None
        return self.products

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

    def groups(self) -> list[Group]:
        """Every workgroup's program, in order; no workgroup may touch what another stores."""
        request, found = self.request, []
        owner: dict[tuple[int, int], int] = {}
        seen: dict[tuple[int, int], set] = {}
        extents = [range(n) for n in reversed(request.grid)]
        for number, (z, y, x) in enumerate(itertools.product(*extents)):
            target = KtpuTarget(self.program, self.arguments, request.grid, request.block, (x, y, z))
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
            self.stored += target.stores
            found.append(shaped(number, code))
        return found

    @staticmethod
    def refuse(target: KtpuTarget, what: str) -> None:
        """A refusal of the whole launch."""
        raise Unlowered(Refusal(f"XPU-N01: {what}", target.program.kernel.at))

    def lower(self) -> Artifact:
        """Programs, places, rounds."""
        machine, program = self.machine, self.program
        nodes = [unit.node for unit in machine.vectors]
        if not nodes:
            raise Unlowered(Refusal(f"XPU-N01: machine {machine.name} has no vector core", program.kernel.at))
        base_of, cursor = {}, 0
        for number, memory in enumerate(self.memories):
            base_of[number] = cursor
            cursor += -(-max(len(memory), 1) // PAGE) * PAGE
        try:
            together = packs(self.groups(), l1_room(machine))
            tables, masks_at, table = {}, {}, b""
            for group in together:
                masks = tuple(masks_of(group[0].shape))
                if masks not in tables:
                    tables[masks] = cursor + len(table)
                    table += mask_words(masks)
                masks_at[id(group)] = tables[masks]
            states = {node: CoreState() for node in nodes}
            keys = [(n,) for n in range(len(together))]
            placed = deal(keys, nodes)
            streams, words = {}, 0
            for key, group in zip(keys, together, strict=True):
                streams[key], drained = payloads(group, states[placed[key]], base_of, masks_at[id(group)])
                words += drained
        except DoesNotFit as why:
            raise Unlowered(Refusal(f"XPU-N01: {why}", program.kernel.at)) from None
        self.table = table
        stage = Stage("vector", (len(together),), placed, {}, (0,), words)
        rounds = schedule(0, "vector", by_node(streams, placed), machine.credit_limit, machine.staging_flits)
        # A memory is both: results are cleared before operands are written, so that what is there stays.
        places = [(n, len(m), base_of[n]) for n, m in enumerate(self.memories)]
        images = [self.image(f"memory{n}_after", "out", size, at) for n, size, at in places]
        images += [self.image(f"memory{n}", "in", size, at) for n, size, at in places]
        if table:
            images.append(self.image("masks", "in", len(table), cursor))
        end = images[-1].address + images[-1].bytes
        if end > machine.memory.bytes:
            raise Unlowered(Refusal(f"XPU-N01: {end} bytes of memory, and {machine.name} has {machine.memory.bytes}",
                                    program.kernel.at))  # fmt: skip
        at = program.kernel.at
        return Artifact(
            kernel=program.name, reference=f"{at.file}:{at.line}", knobs={}, extents={}, lead=(), options={},
            machine=machine.name, machine_digest=hashlib.sha256(to_yaml(machine).encode()).hexdigest(), mantissa=14,
            buffers=tuple(images), stages=(stage,), rounds=tuple(rounds),
            statements=(StatementRecord(0, f"{at.file}:{at.line}", at.text),), writers=(),
        )  # fmt: skip

    @staticmethod
    def image(name: str, role: str, size: int, address: int) -> BufferImage:
        """Bytes of memory, as a row of halves."""
        halves = max(-(-size // 2), 1)
        return BufferImage(name, role, (halves,), Flat((halves,)), 1, -(-halves * 2 // 32) * 32, address)

    def operands(self, number: int) -> dict[str, np.ndarray]:
        """What an artifact's input buffers hold, as FP16 patterns, from memory as it is."""
        if self.products:
            return self.products[number].operands(self.memories)
        held = {f"memory{n}": halves(bytes(memory)) for n, memory in enumerate(self.memories)}
        return held | ({"masks": halves(self.table)} if self.table else {})

    def bring(self, number: int, outputs: Mapping[str, np.ndarray]) -> None:
        """An artifact's results into memory: only what the kernel stored."""
        if self.products:
            self.products[number].bring(self.memories, outputs)
            return
        found = {n: outputs[f"memory{n}_after"].view(np.uint8) for n in range(len(self.memories))}
        for memory, byte, size in self.stored:
            self.memories[memory][byte : byte + size] = found[memory][byte : byte + size]

    def run(self, execute: Callable[[Artifact, dict], Run]) -> int:
        """Every artifact through `execute`, which gives a loader's Run. Gives the cycles."""
        cycles = 0
        for number, artifact in enumerate(self.artifacts):
            done = execute(artifact, self.operands(number))
            self.bring(number, done.outputs)
            cycles += int(done.elapsed)
        return cycles


def halves(data: bytes) -> np.ndarray:
    """Bytes as FP16 patterns, an odd one filled up."""
    return np.frombuffer(data.ljust(max(len(data) + len(data) % 2, 2), b"\0"), np.uint16)


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
            raise XpuLaunchError(kernel.name, self.name, 0, REASONS[0], str(unlowered)) from None

    def run(self, request: Request) -> int:
        """On the cycle models. Gives the cycles."""
        lowered = self.lower(request)
        return lowered.run(Loader(Driver(ModelTransport(System(lowered.machine)))).run)


KTPU = KtpuBackEnd()
RUNTIME.register(KTPU)
