"""Number formats against the golden vectors: quantiser, ALU, seeds and conversions, bit for bit.

One function per file of the golden directory, each giving its tallies. Every array of a file is read, and one
that is missing or unknown is refused by name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from kohakutpu.conformance.report import Tally
from kohakutpu.formats import alu, e8m15, mxfp7


class Arrays:
    """The arrays of one archive, keeping count of those read.

    Raises `ValueError` for a file that is no archive, and for an array that is missing.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
                self.arrays = {name: archive[name] for name in archive.files}
        except (BadZipFile, EOFError, TypeError, ValueError, zlib.error) as error:
            raise ValueError(f"{path}: not a readable archive of arrays: {error}") from error
        self.unread = set(self.arrays)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise ValueError(f"{self.path}: array {name!r} is missing; it holds {', '.join(sorted(self.arrays))}")
        self.unread.discard(name)
        return self.arrays[name]

    def close(self) -> None:
        """Refuse arrays that no check read."""
        if self.unread:
            raise ValueError(f"{self.path}: nothing compares {', '.join(sorted(self.unread))}")


def tally(arrays: Arrays, what: str, inputs: np.ndarray, *pairs: tuple[str, np.ndarray, np.ndarray]) -> Tally:
    """Compare one vector per row of `inputs`; `pairs` are (name, ours, recorded), rows alike.

    A vector differs when any of its pairs does. Raises `ValueError` for arrays whose lengths do not agree.
    """
    count = len(inputs)
    result = Tally(arrays.path.name, what, "vectors", compared=count)
    wrong = np.zeros(count, dtype=bool)
    for name, ours, recorded in pairs:
        if ours.shape != recorded.shape or len(recorded) != count:
            raise ValueError(f"{arrays.path}: {what}: {count} inputs, but {name} is {list(recorded.shape)}")
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
    """The quantiser and both operand layouts, one vector per entry; unpacking must return the same entry.

    `cycles_A` and `cycles_B` time the memory agent's block and are no part of the format.
    """
    arrays = Arrays(path)
    for name in ("cycles_A", "cycles_B", "tag"):
        arrays[name]
    entries = arrays["fp16"]
    q, scale = mxfp7.quantise(entries)
    pairs = []
    for layout in "AB":
        recorded = arrays[f"words_{layout}"]
        pairs.append((f"words_{layout}", mxfp7.pack(q, scale, layout), recorded))
        unpacked_q, unpacked_scale = mxfp7.unpack(recorded, layout)
        pairs.append((f"significands of words_{layout}", unpacked_q, q))
        pairs.append((f"scales of words_{layout}", unpacked_scale, scale))
    arrays.close()
    return [tally(arrays, "MXFP7 quantiser", entries, *pairs)]


def check_vec_alu(path: Path) -> list[Tally]:
    """Every ALU operation, value and predicate, and exp2 around the ends of its range."""
    arrays = Arrays(path)
    results = []
    for op in alu.AluOp:
        inputs = arrays[f"{op.name}_in"]
        value, predicate = alu.execute(op, *_columns(inputs))
        results.append(
            tally(arrays, op.name, inputs, ("out", value, arrays[f"{op.name}_out"]),
                  ("pred", predicate, arrays[f"{op.name}_pred"]))
        )  # fmt: skip
    results.append(_unary(arrays, "exp2_range", alu.exp2))
    arrays.close()
    return results


def check_vec_alu_extra(path: Path) -> list[Tally]:
    """Product ties, far-apart addends, and the seeds over whole binades."""
    arrays = Arrays(path)
    results = []
    for kind, names in (("ties", ("VMUL", "VFMA", "VFNMA")), ("align", ("VFMA", "VADD", "VSUB"))):
        for name in names:
            inputs = arrays[f"{kind}_{name}_in"]
            value, _ = alu.execute(alu.AluOp[name], *_columns(inputs))
            results.append(tally(arrays, f"{kind} {name}", inputs, ("out", value, arrays[f"{kind}_{name}_out"])))
    for name, seed in (("VLOG2", alu.log2), ("VINV", alu.inv), ("VRSQRT", alu.rsqrt), ("VEXP2", alu.exp2)):
        results.append(_unary(arrays, f"dense_{name}", seed))
    arrays.close()
    return results


def check_vec_cvt(path: Path) -> list[Tally]:
    """Conversions between E8M15 and the two memory formats; an E8M15 vector covers both directions out."""
    arrays = Arrays(path)
    half, single, word = arrays["f16_in"], arrays["f32_in"], arrays["e8_in"]
    results = [
        tally(arrays, "FP16 to E8M15", half, ("f16_to_e8", e8m15.from_fp16(half), arrays["f16_to_e8"])),
        tally(arrays, "FP32 to E8M15", single, ("f32_to_e8", e8m15.from_fp32(single), arrays["f32_to_e8"])),
        tally(arrays, "E8M15 to FP16 and FP32", word,
              ("e8_to_f16", e8m15.to_fp16(word), arrays["e8_to_f16"]),
              ("e8_to_f32", e8m15.to_fp32(word), arrays["e8_to_f32"])),
    ]  # fmt: skip
    arrays.close()
    return results


def check_errata_exp2_wrap(path: Path) -> list[Tally]:
    """exp2 in its wrapping range, with the erratum `exp2-wrap` in force."""
    arrays = Arrays(path)
    results = [_unary(arrays, name, lambda a: alu.exp2(a, wrap=True)) for name in ("a", "range")]
    arrays.close()
    return results


def _columns(inputs: np.ndarray) -> np.ndarray:
    """The operands a, b, c of uint32[n,3] vectors, each contiguous."""
    return np.ascontiguousarray(inputs.T)


def _unary(arrays: Arrays, name: str, function: Callable[[np.ndarray], np.ndarray]) -> Tally:
    inputs = arrays[f"{name}_in"]
    return tally(arrays, name.replace("_", " "), inputs, ("out", function(inputs), arrays[f"{name}_out"]))
