"""Cocotb side of the arithmetic of the vector core: recorded and random vectors streamed through many of each unit."""

import os
from collections import deque
from pathlib import Path

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge
from support.counted import report

from kohakutpu.formats import alu, e8m15
from kohakutpu.isa.vector import COMPARES, Opcode
from rtl.vector_alu import LATENCY
from rtl.vector_tree import STAGES, Node

GOLDEN = Path(os.environ["GOLDEN"])
EXP2_WRAP = os.environ["EXP2_WRAP"] == "True"
UNITS = int(os.environ["UNITS"])
FILES = os.environ["FILES"].split()  # of recorded ALU vectors


def packed(columns: np.ndarray) -> int:
    """uint32 [units, 3] words of 24 bits as the units' inputs."""
    octets = np.ascontiguousarray(columns, "<u4").view(np.uint8).reshape(UNITS, 3, 4)
    return int.from_bytes(octets[:, :, :3].tobytes(), "little")


def unpacked(value: int, size: int) -> np.ndarray:
    """uint32 [units] of an output with `size` bytes a unit."""
    octets = np.frombuffer(value.to_bytes(UNITS * size, "little"), np.uint8).reshape(UNITS, size)
    words = np.zeros((UNITS, 4), np.uint8)
    words[:, :size] = octets
    return words.view("<u4")[:, 0]


async def stream(dut, name: str, control, select: int, source, operands: np.ndarray, check, latency: int) -> int:
    """Put `operands` through, one a unit and cycle; `check` gets their positions `latency` cycles later. Returns how
    many.
    """
    control.value = select
    pending = deque()
    for start in [*range(0, len(operands), UNITS), *[None] * latency]:
        if start is not None:
            block = operands[start : start + UNITS]
            source.value = packed(np.concatenate([block, np.zeros((UNITS - len(block), 3), np.uint32)]))
            pending.append((start, len(block)))
        else:
            pending.append(None)
        await FallingEdge(dut.clk)
        if len(pending) >= latency and (due := pending.popleft()):
            check(*due)
    assert len(operands), f"{name}: nothing to compare"
    return len(operands)


def differs(name: str, operands, got: np.ndarray, want: np.ndarray) -> None:
    wrong = np.flatnonzero(got != want)
    if len(wrong):
        first = wrong[0]
        words = " ".join(f"{int(word):06x}" for word in np.atleast_1d(operands[first]))
        raise AssertionError(
            f"{name}: {words} gave {int(got[first]):06x}, expected {int(want[first]):06x}; {len(wrong)} differ"
        )


async def begin(dut):
    dut.op.value = dut.node.value = dut.source.value = dut.single.value = 0
    cocotb.start_soon(Clock(dut.clk, 4, "ns").start())
    await FallingEdge(dut.clk)


async def through_alu(dut, name: str, op: Opcode, operands, values, predicates=None) -> int:
    operands = np.asarray(operands, np.uint32).reshape(len(operands), -1)
    operands = np.pad(operands, ((0, 0), (0, 3 - operands.shape[1])))

    def check(start: int, count: int) -> None:
        part = slice(start, start + count)
        differs(name, operands[part], unpacked(int(dut.value.value), 3)[:count], values[part])
        if predicates is not None and op in COMPARES:
            bits = int(dut.predicate.value)
            got = np.array([bits >> unit & 1 for unit in range(count)])
            differs(f"{name} predicate", operands[part], got, predicates[part].astype(int))

    return await stream(dut, name, dut.op, op, dut.source, operands, check, LATENCY)


async def through_adder(dut, name: str, node: Node, a, b, values) -> int:
    operands = np.stack([a, b, np.zeros_like(a)], axis=1).astype(np.uint32)

    def check(start: int, count: int) -> None:
        part = slice(start, start + count)
        differs(name, operands[part], unpacked(int(dut.sum.value), 3)[:count], values[part])

    return await stream(dut, name, dut.node, node, dut.source, operands, check, STAGES)


def recorded(archive) -> list[tuple[str, Opcode]]:
    """(prefix, opcode) of every set of vectors in an archive."""
    prefixes = [key.removesuffix("_in") for key in archive.files if key.endswith("_in")]
    exp2 = ("exp2_range", "a", "range")  # of vec_alu.npz, and the two of errata_exp2_wrap.npz
    return [(prefix, Opcode.VEXP2 if prefix in exp2 else Opcode[prefix.split("_")[-1]]) for prefix in prefixes]


@cocotb.test()
async def alu_gives_what_was_recorded(dut):
    await begin(dut)
    count = 0
    for file in FILES:
        with np.load(GOLDEN / file) as archive:
            for prefix, op in recorded(archive):
                predicates = archive[f"{prefix}_pred"] if f"{prefix}_pred" in archive.files else None
                count += await through_alu(
                    dut, f"{file} {prefix}", op, archive[f"{prefix}_in"], archive[f"{prefix}_out"], predicates
                )
    dut._log.warning(f"{count} recorded ALU vectors equal")
    report(vectors=count)


@cocotb.test()
async def alu_gives_what_the_formats_give(dut):
    await begin(dut)
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    count = 0
    for op in [op for op in Opcode if op <= Opcode.VRSQRT]:
        operands = rng.integers(0, 1 << 24, (32 * UNITS, 3)).astype(np.uint32)
        near = operands[16 * UNITS :]
        near[:] = (near & 0x807FFF) | rng.integers(100, 155, near.shape).astype(np.uint32) << 15
        values, predicates = alu.execute(op, *(column.copy() for column in operands.T), exp2_wrap=EXP2_WRAP)
        count += await through_alu(dut, op.name, op, operands, values, predicates)
    dut._log.warning(f"{count} random ALU vectors equal")


@cocotb.test()
async def tree_adder_is_the_alu(dut):
    await begin(dut)
    count = 0
    for file in FILES:
        with np.load(GOLDEN / file) as archive:
            for prefix, op in recorded(archive):
                if op in (Opcode.VADD, Opcode.VMAX, Opcode.VMIN):
                    a, b, c = archive[f"{prefix}_in"].T
                    node = {Opcode.VADD: Node.ADD, Opcode.VMAX: Node.MAX, Opcode.VMIN: Node.MIN}[op]
                    count += await through_adder(
                        dut, prefix, node, a, c if op == Opcode.VADD else b, archive[f"{prefix}_out"]
                    )
    rng = np.random.default_rng(cocotb.RANDOM_SEED)
    a = rng.integers(0, 1 << 24, 60_000).astype(np.uint32)
    # operands up to 40 binades apart, short fractions and equal magnitudes among them: ties and cancellation
    exponent = np.clip((a >> 15 & 255).astype(int) + rng.integers(-40, 41, len(a)), 0, 255).astype(np.uint32)
    fraction = rng.integers(0, 1 << 15, len(a)).astype(np.uint32)
    fraction = np.where(rng.random(len(a)) < 0.3, fraction & 0x7000, fraction)
    a = np.where(rng.random(len(a)) < 0.2, a & 0xFFF003, a)
    b = rng.integers(0, 2, len(a)).astype(np.uint32) << 23 | exponent << 15 | fraction
    b = np.where(rng.random(len(a)) < 0.1, a ^ 0x800000, b).astype(np.uint32)
    for node, function in ((Node.ADD, alu.add), (Node.MAX, alu.maximum), (Node.MIN, alu.minimum)):
        count += await through_adder(dut, node.name, node, a, b, function(a, b))
    dut._log.warning(f"{count} sums, maxima and minima equal")


@cocotb.test()
async def conversions(dut):
    await begin(dut)
    count = 0

    async def convert(name: str, size: int, words, values, output) -> None:
        nonlocal count
        words = np.asarray(words, np.uint32)
        for start in range(0, len(words), UNITS):
            block = np.zeros(UNITS, "<u4")
            part = slice(start, start + UNITS)
            block[: len(words[part])] = words[part]
            dut.single.value = int.from_bytes(block.tobytes(), "little")
            await FallingEdge(dut.clk)
            differs(name, words[part], unpacked(int(output.value), size)[: len(words[part])], values[part])
        count += len(words)

    with np.load(GOLDEN / "vec_cvt.npz") as archive:
        await convert("FP16 to E8M15", 3, archive["f16_in"], archive["f16_to_e8"], dut.from_fp16)
        await convert("FP32 to E8M15", 3, archive["f32_in"], archive["f32_to_e8"], dut.from_fp32)
        await convert("E8M15 to FP16", 2, archive["e8_in"], archive["e8_to_f16"], dut.to_fp16)
        await convert("E8M15 to FP32", 4, archive["e8_in"], archive["e8_to_f32"], dut.to_fp32)
    report(words=count)
    halves = np.arange(1 << 16).astype(np.uint16)
    await convert("every FP16", 3, halves, e8m15.from_fp16(halves), dut.from_fp16)
    words = np.random.default_rng(cocotb.RANDOM_SEED).integers(0, 1 << 24, 40_000).astype(np.uint32)
    words[20_000:] = (words[20_000:] & 0x807FFF) | (words[20_000:] >> 15 & 63) + 90 << 15
    await convert("random E8M15", 2, words, e8m15.to_fp16(words), dut.to_fp16)
    dut._log.warning(f"{count} conversions equal")
