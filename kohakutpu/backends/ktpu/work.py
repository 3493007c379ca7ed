"""Workgroups' vector code as an artifact: programs, places in the machine's memory, rounds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kohakutpu.compiler.artifact import Artifact, BufferImage, Stage, StatementRecord
from kohakutpu.compiler.core import CoreState
from kohakutpu.compiler.deal import deal
from kohakutpu.compiler.layouts import Flat
from kohakutpu.compiler.programs import l1_room
from kohakutpu.compiler.rounds import by_node, schedule
from kohakutpu.machine import Machine, to_yaml
from kohakutpu.xpu import tree

from .programs import DoesNotFit, Group, mask_words, masks_of, packs, payloads

PAGE = 2048


@dataclass
class Work:
    """`artifact`, the masks' words, and the (memory, byte, bytes) that come back from it."""

    artifact: Artifact
    table: bytes
    stored: list[tuple[int, int, int]]

    def operands(self, memories: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """What the input buffers hold, as FP16 patterns, from memory as it is."""
        held = {f"memory{n}": halves(bytes(memory)) for n, memory in enumerate(memories)}
        return held | ({"masks": halves(self.table)} if self.table else {})

    def bring(self, memories: Sequence[np.ndarray], outputs: Mapping[str, np.ndarray]) -> None:
        """The results into memory: only what was stored."""
        found = {n: outputs[f"memory{n}_after"].view(np.uint8) for n in range(len(memories))}
        for memory, byte, size in self.stored:
            memories[memory][byte : byte + size] = found[memory][byte : byte + size]


def worked(program: tree.Program, machine: Machine, sizes: Sequence[int], groups: Sequence[Group], stored) -> Work:
    """Workgroups on memories of `sizes` bytes. Raises DoesNotFit."""
    nodes = [unit.node for unit in machine.vectors]
    if not nodes:
        raise DoesNotFit(f"machine {machine.name} has no vector core")
    base_of, cursor = {}, 0
    for number, size in enumerate(sizes):
        base_of[number] = cursor
        cursor += -(-max(size, 1) // PAGE) * PAGE
    together = packs(groups, l1_room(machine))
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
    stage = Stage("vector", (len(together),), placed, {}, (0,), words)
    rounds = schedule(0, "vector", by_node(streams, placed), machine.credit_limit, machine.staging_flits)
    # A memory is both: results are cleared before operands are written, so that what is there stays.
    places = [(n, size, base_of[n]) for n, size in enumerate(sizes)]
    images = [image(f"memory{n}_after", "out", size, at) for n, size, at in places]
    images += [image(f"memory{n}", "in", size, at) for n, size, at in places]
    if table:
        images.append(image("masks", "in", len(table), cursor))
    end = images[-1].address + images[-1].bytes
    if end > machine.memory.bytes:
        raise DoesNotFit(f"{end} bytes of memory, and {machine.name} has {machine.memory.bytes}")
    at = program.kernel.at
    artifact = Artifact(
        kernel=program.name, reference=f"{at.file}:{at.line}", knobs={}, extents={}, lead=(), options={},
        machine=machine.name, machine_digest=hashlib.sha256(to_yaml(machine).encode()).hexdigest(), mantissa=14,
        buffers=tuple(images), stages=(stage,), rounds=tuple(rounds),
        statements=(StatementRecord(0, f"{at.file}:{at.line}", at.text),), writers=(),
    )  # fmt: skip
    return Work(artifact, table, list(stored))


def image(name: str, role: str, size: int, address: int) -> BufferImage:
    """Bytes of memory, as a row of halves."""
    halves = max(-(-size // 2), 1)
    return BufferImage(name, role, (halves,), Flat((halves,)), 1, -(-halves * 2 // 32) * 32, address)


def halves(data: bytes) -> np.ndarray:
    """Bytes as FP16 patterns, an odd one filled up."""
    return np.frombuffer(data.ljust(max(len(data) + len(data) % 2, 2), b"\0"), np.uint16)
