"""Number formats against the golden vectors: quantiser, ALU, seeds and conversions, bit for bit.

One function per file of the golden directory, each giving its tallies. Every array of a file is read, and one
that is missing or unknown is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from kohakutpu.formats import alu, e8m15, mxfp7

from .arrays import Arrays, GoldenError, open_arrays
from .report import Tally


def tally(arrays: Arrays, what: str, inputs: np.ndarray, *pairs: tuple[str, np.ndarray, np.ndarray]) -> Tally:
    """Compare one vector per row of `inputs`; `pairs` are (name, ours, recorded), rows alike.

    A vector differs when any of its pairs does. Raises `GoldenError` for arrays that are empty or whose lengths do not
    agree.
    """
    count = len(inputs)
    if not count:
        raise GoldenError(f"{arrays.path}: {what}: no inputs, so nothing would be compared")
    result = Tally(arrays.path.name, what, "vectors", compared=count)
    wrong = np.zeros(count, dtype=bool)
    for name, ours, recorded in pairs:
        if ours.shape != recorded.shape or len(recorded) != count:
            raise GoldenError(f"{arrays.path}: {what}: {count} inputs, but {name} is {list(recorded.shape)}")
        different = (ours != recorded).reshape(count, -1)
        rows = different.any(axis=1)
        if rows.any():
            row = int(rows.argmax())
            at = int(different[row].argmax())
            got, wanted = ours.reshape(count, -1)[row, at], recorded.reshape(count, -1)[row, at]
            position = f"[{row}]" if different.shape[1] == 1 else f"[{row}] element {at}"
            where = f"{what} {name}{position}: got {int(got):06X}, recorded {int(wanted):06X}"
            if inputs[row].size <= 3:
                where += " for " + " ".join(f"{int(value):06X}" for value in np.ravel(inputs[row]))
            if not result.first:
                result.first = where
        wrong |= rows
    result.mismatched = int(wrong.sum())
    return result


def check_mx_quant(path: Path) -> list[Tally]:
    """The quantiser and both operand layouts, one vector per entry; unpacking must return the same entry."""
    arrays = open_arrays(path)
    arrays.leave({"tag": "how the entry was made"})
    entries = arrays.array("fp16", "uint16", None, mxfp7.LANES, mxfp7.BLOCK)
    for name in ("cycles_A", "cycles_B"):
        arrays.array(name, "uint32", len(entries))  # the published block's time, not its result
    q, scale = mxfp7.quantise(entries)
    pairs = []
    for layout in "AB":
        recorded = arrays.array(f"words_{layout}", "uint32", None, mxfp7.WORDS, 8)
        pairs.append((f"words_{layout}", mxfp7.pack(q, scale, layout), recorded))
        unpacked_q, unpacked_scale = mxfp7.unpack(recorded, layout)
        pairs.append((f"significands of words_{layout}", unpacked_q, q))
        pairs.append((f"scales of words_{layout}", unpacked_scale, scale))
    arrays.close()
    return [tally(arrays, "MXFP7 quantiser", entries, *pairs)]


def check_vec_alu(path: Path) -> list[Tally]:
    """Every ALU operation, value and predicate, and exp2 around the ends of its range."""
    arrays = open_arrays(path)
    results = []
    for op in alu.AluOp:
        inputs = arrays.array(f"{op.name}_in", "uint32", None, 3)
        value, predicate = alu.execute(op, *_columns(inputs))
        results.append(
            tally(arrays, op.name, inputs, ("out", value, arrays.array(f"{op.name}_out", "uint32", None)),
                  ("pred", predicate, arrays.array(f"{op.name}_pred", "uint8", None)))
        )  # fmt: skip
    results.append(_unary(arrays, "exp2_range", alu.exp2))
    arrays.close()
    return results


def check_vec_alu_extra(path: Path) -> list[Tally]:
    """Product ties, far-apart addends, and the seeds over whole binades."""
    arrays = open_arrays(path)
    results = []
    for kind, names in (("ties", ("VMUL", "VFMA", "VFNMA")), ("align", ("VFMA", "VADD", "VSUB"))):
        for name in names:
            inputs = arrays.array(f"{kind}_{name}_in", "uint32", None, 3)
            value, _ = alu.execute(alu.AluOp[name], *_columns(inputs))
            recorded = arrays.array(f"{kind}_{name}_out", "uint32", None)
            results.append(tally(arrays, f"{kind} {name}", inputs, ("out", value, recorded)))
    for name, seed in (("VLOG2", alu.log2), ("VINV", alu.inv), ("VRSQRT", alu.rsqrt), ("VEXP2", alu.exp2)):
        results.append(_unary(arrays, f"dense_{name}", seed))
    arrays.close()
    return results


def check_vec_cvt(path: Path) -> list[Tally]:
    """Conversions between E8M15 and the two memory formats; an E8M15 vector covers both directions out."""
    arrays = open_arrays(path)
    half = arrays.array("f16_in", "uint16", None)
    single, word = arrays.array("f32_in", "uint32", None), arrays.array("e8_in", "uint32", None)
    results = [
        tally(arrays, "FP16 to E8M15", half,
              ("f16_to_e8", e8m15.from_fp16(half), arrays.array("f16_to_e8", "uint32", None))),
        tally(arrays, "FP32 to E8M15", single,
              ("f32_to_e8", e8m15.from_fp32(single), arrays.array("f32_to_e8", "uint32", None))),
        tally(arrays, "E8M15 to FP16 and FP32", word,
              ("e8_to_f16", e8m15.to_fp16(word), arrays.array("e8_to_f16", "uint16", None)),
              ("e8_to_f32", e8m15.to_fp32(word), arrays.array("e8_to_f32", "uint32", None))),
    ]  # fmt: skip
    arrays.close()
    return results


def check_errata_exp2_wrap(path: Path) -> list[Tally]:
    """exp2 in its wrapping range, with the erratum `exp2-wrap` in force."""
    arrays = open_arrays(path)
    results = [_unary(arrays, name, lambda a: alu.exp2(a, wrap=True)) for name in ("a", "range")]
    arrays.close()
    return results


def _columns(inputs: np.ndarray) -> np.ndarray:
    """The operands a, b, c of uint32[n,3] vectors, each contiguous."""
    return np.ascontiguousarray(inputs.T)


def _unary(arrays: Arrays, name: str, function: Callable[[np.ndarray], np.ndarray]) -> Tally:
    inputs = arrays.array(f"{name}_in", "uint32", None)
    recorded = arrays.array(f"{name}_out", "uint32", None)
    return tally(arrays, name.replace("_", " "), inputs, ("out", function(inputs), recorded))
