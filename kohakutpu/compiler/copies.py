"""A copy of a buffer in an operand's order as an artifact of its own, between kernels (`relayout` has the copy itself)."""

from __future__ import annotations

from kohakutpu.machine import Machine

from . import padding, relayout
from .artifact import Artifact, BufferImage, Stage
from .compile import machine_digest
from .core import CoreState
from .layouts import Layout
from .programs import l1_room
from .refusals import CompileError
from .relayout import Shape
from .rounds import by_node, schedule


def cut_of(source: BufferImage, target: Layout, machine: Machine, dirt: padding.Dirt, clean: bool) -> Shape:
    """How vector cores copy a buffer into the order `target`; `dirt` is that of the source, under its name.

    Raises CompileError where they cannot.
    """
    if not machine.vectors:
        raise CompileError(f"machine {machine.name} has no vector core, and {source.name} must be copied into {target.key}")
    return relayout.shape(
        source.layout, target, source.copies, dirt.columns.get(source.name), source.name, None, l1_room(machine),
        len(machine.vectors), clean and relayout.keeps_zeros(source.layout, target, source.name in dirt.rows),
    )  # fmt: skip


def copy_artifact(cut: Shape, source: BufferImage, target: BufferImage, machine: Machine) -> Artifact:
    """The instructions of a copy between two buffers that have addresses."""
    nodes = [unit.node for unit in machine.vectors]
    streams, places, words = relayout.lower(cut, source, target, nodes, {node: CoreState() for node in nodes})
    stage = Stage("vector", (len(places),), places, {}, (), words, (source.name, target.name))
    rounds = schedule(0, "vector", by_node(streams, places), machine.credit_limit, machine.staging_flits)
    return Artifact(
        kernel=f"copy {source.name} as {target.layout.key}", reference="", knobs={}, extents={}, lead=(), options={},
        machine=machine.name, machine_digest=machine_digest(machine),
        mantissa=machine.clusters[0].mantissa if machine.clusters else 0, buffers=(source, target),
        stages=(stage,), rounds=tuple(rounds), statements=(), writers=(),
    )  # fmt: skip
