"""Runs an artifact on whatever answers a `Transport`: stage, kick, await, round by round (spec: artifact and loader).

An await compares the status mirror with a baseline that was read before the chain of rounds was dispatched, since the
mirror survives a reset. Inside a chain the next round is staged as soon as the dispatcher is idle. A completion only
says that a write was handed over; after a stage the loader therefore waits until the memory ports have acknowledged
every word that the stage writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kohakutpu.compiler.artifact import UNIT_TYPES, Artifact, Await, BufferImage, Kick, Round, Seed
from kohakutpu.compiler.layouts import Quantised
from kohakutpu.compiler.rounds import TXN
from kohakutpu.isa import registers, vector
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.memory import APERTURE_ADDRESS, Aperture

from .driver import AgentError, Driver, NoAnswer
from .faults import UnitFault, check_fault
from .transport import MEMORY_BASE, WORD


class LoadError(ValueError):
    """Operands or an artifact that cannot be loaded: says which and why."""


@dataclass(frozen=True)
class Run:
    """What running an artifact gave: outputs by port (uint16 FP16 patterns), their raw images, and the clock.

    `elapsed` is in the transport's `unit`, from the first staged flit to the last word in memory, without the
    transfer of operands and results; `stages` is each stage's part of it.
    """

    outputs: Mapping[str, np.ndarray]
    images: Mapping[str, bytes]
    elapsed: float
    unit: str
    stages: tuple[float, ...]


class Loader:
    """Loads and runs artifacts through a `Driver`.

    `progress(done, total)` is called after each round.
    """

    def __init__(
        self, driver: Driver, *, memory_base: int = MEMORY_BASE, progress: Callable[[int, int], None] | None = None
    ):
        self.driver = driver
        self.transport = driver.transport
        self.memory_base = memory_base
        self.progress = progress
        self._kinds: dict[int, int] = {}  # CU_TYPE by node of the artifact that runs

    # ---- buffers ---------------------------------------------------------------------------------------

    def write_buffer(self, image: BufferImage, data: bytes) -> None:
        padded = data.ljust(-(-len(data) // WORD) * WORD, b"\0")
        self.transport.write_block(self.memory_base + image.address, padded)

    def upload(self, image: BufferImage, array: np.ndarray) -> None:
        """Send FP16 entries to the upload aperture of the operand's side: the machine quantises and stores them."""
        aperture = {"A": Aperture.UPLOAD_A, "B": Aperture.UPLOAD_B}[image.layout.side]
        for address, entries in image.uploads(array):
            inside = APERTURE_ADDRESS.encode(aperture=aperture, local=address)
            self.transport.write_block(self.memory_base + inside, entries)

    def read_buffer(self, image: BufferImage) -> bytes:
        length = -(-image.bytes // WORD) * WORD
        return self.transport.read_block(self.memory_base + image.address, length)[: image.bytes]

    def load(self, artifact: Artifact, operands: Mapping[str, np.ndarray]) -> None:
        """Write operands and constants; clear results and temporaries, so that nothing of an earlier run shows."""
        names = {image.name for image in artifact.inputs}
        if operands.keys() != names:
            raise LoadError(
                f"{artifact.kernel} takes {', '.join(sorted(names))}; given {', '.join(sorted(operands)) or 'nothing'}"
            )
        for image in artifact.buffers:
            if image.role == "in":
                array = np.asarray(operands[image.name])
                if array.dtype not in (np.dtype(np.float16), np.dtype(np.uint16)):
                    raise LoadError(f"{image.name}: expected float16 or uint16 bit patterns, got {array.dtype}")
                if isinstance(image.layout, Quantised):
                    self.upload(image, array)
                else:
                    self.write_buffer(image, image.pack(array))
            else:
                contents = image.contents()
                self.write_buffer(image, bytes(image.bytes) if contents is None else contents)

    def move(self, artifact: Artifact, source: str, target: str) -> None:
        """Read a buffer and write what it holds in another one's byte order."""
        held, wanted = artifact.buffer(source), artifact.buffer(target)
        self.write_buffer(wanted, wanted.pack(held.unpack(self.read_buffer(held))))

    # ---- rounds ----------------------------------------------------------------------------------------

    def _counts(self, chain: Sequence[Round]) -> dict[int, int]:
        """The signal count of each node that a chain awaits, before it begins."""
        return {step.node: self.driver.node_status(step.node)["count"] for round_ in chain for step in round_.awaits}

    def run_chain(self, chain: Sequence[Round], after: Callable[[Round], None] = lambda _: None) -> None:
        """The rounds of a chain: counts first, then each round's flits and its steps in order. `after` sees each."""
        self.driver.forget()
        expected = self._counts(chain)
        for round_ in chain:
            if round_ is not chain[0]:
                self.driver.await_dispatch()
            self.driver.stage(flit.to_int() for flit in round_.flits)
            for step in round_.steps:
                if isinstance(step, Seed):
                    self.driver.seed_credit(step.credits)
                elif isinstance(step, Kick):
                    self.driver.kick(step.node & 15, step.node >> 4, step.base, step.count)
                elif isinstance(step, Await):
                    status = self.driver.await_signals(step.node, expected[step.node] + step.count)
                    check_fault(step.node, status, self._kinds.get(step.node), "at the end of what it was sent")
            after(round_)

    def _written(self) -> int:
        return self.driver.read(registers.AUX_STAT)["writes"]

    def _restore(self) -> None:
        """Put descriptors that the artifact before left walked back to one step, which every program relies on."""
        for at, dimensions in self.transport.walked.items():
            payloads = [
                vector.DESC_DIM.encode(ad=ad, field=vector.DescField.DIM0 + number, stride=0, bound=1)
                for ad, number in dimensions
            ]
            flits = tuple(
                Flit(0, 0, FlitType.CU_INST, TXN["vector"], int(count == len(payloads)), 0, payload)
                for count, payload in enumerate(payloads, 1)
            )
            steps = (Seed(1), Kick(at, 0, len(flits)), Await(at, len(flits), 0))
            self.run_chain([Round(0, flits, ((),) * len(flits), steps, False)])
        self.transport.walked = {}

    def run(self, artifact: Artifact, operands: Mapping[str, np.ndarray]) -> Run:
        """Load operands, run every round, read the results back.

        Raises `LoadError` for wrong operands, `NoAnswer` for a machine that stops, `AgentError` for what the agent
        refuses and `UnitFault` for a unit whose last signal is a FAULT, with the round named.
        """
        self.driver.identify()
        self.driver.clear_error()
        self.load(artifact, operands)
        return self.execute(artifact)

    def execute(self, artifact: Artifact) -> Run:
        """Run every round on operands that are loaded already, and read the results back."""
        stages = self.compute(artifact)
        images = {image.name: self.read_buffer(image) for image in artifact.outputs}
        outputs = {image.name: image.unpack(images[image.name]) for image in artifact.outputs}
        return Run(outputs, images, sum(stages), self.transport.unit, stages)

    def compute(self, artifact: Artifact) -> tuple[float, ...]:
        """Run every round on operands that are loaded already, and leave the results where they are: the time that each
        stage took. Raises as `run` does."""
        self._restore()
        self.transport.walked = artifact.walked()
        self._kinds = {at: UNIT_TYPES[stage.unit] for stage in artifact.stages for at in stage.units}
        ends = [self.transport.now]
        written = self._written()
        done = 0

        def after(_: Round) -> None:
            nonlocal done
            done += 1
            if self.progress is not None:
                self.progress(done, len(artifact.rounds))

        try:
            for number, stage in enumerate(artifact.stages):
                if stage.unit == "host":
                    self.move(artifact, *stage.move)
                for chain in artifact.chains(number):
                    self.run_chain(chain, after)
                written = (written + stage.words) & 0xFFFF
                if stage.words:
                    self.driver.poll(registers.AUX_STAT, writes=written, what="waiting for the stage's words in memory")
                ends.append(self.transport.now)
        except (AgentError, NoAnswer, UnitFault) as error:
            where = f"round {min(done, len(artifact.rounds) - 1)} of {len(artifact.rounds)}"
            raise type(error)(f"{artifact.kernel}, {where}: {error}") from error
        return tuple(b - a for a, b in pairwise(ends))
