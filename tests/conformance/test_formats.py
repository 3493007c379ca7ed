"""The golden checks of the number formats: they pass, they count, and they notice."""

import io
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.conformance import formats
from kohakutpu.formats import alu, e8m15, mxfp7, seeds

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests" / "data" / "golden"
FULL = ROOT.parent / "shared" / "golden"
CHECKS = {
    "mx_quant.npz": formats.check_mx_quant,
    "vec_alu.npz": formats.check_vec_alu,
    "vec_alu_extra.npz": formats.check_vec_alu_extra,
    "vec_cvt.npz": formats.check_vec_cvt,
    "errata_exp2_wrap.npz": formats.check_errata_exp2_wrap,
}
# vectors of every file: (sample, full)
COUNTS = {
    "mx_quant.npz": (120, 2_872),
    "vec_alu.npz": (19 * 500, 433_559),
    "vec_alu_extra.npz": (10 * 1000, 767_056),
    "vec_cvt.npz": (3 * 3000, 403_722),
    "errata_exp2_wrap.npz": (2 * 500, 36_312),
}
# the full directory stands next to some checkouts; the sample is always here
FOLDERS = [(SAMPLE, 0)] + [(FULL, 1)] * FULL.is_dir()


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("folder, column", FOLDERS, ids=["sample", "full"][: len(FOLDERS)])
def test_golden(folder, column, name):
    tallies = CHECKS[name](folder / name)
    assert [tally.first for tally in tallies if not tally.ok] == []
    assert sum(tally.compared for tally in tallies) == COUNTS[name][column]
    assert all(tally.file == name and tally.unit == "vectors" for tally in tallies)


# ---- a difference is seen and described ------------------------------------------------------------------


def altered(tmp_path: Path, name: str, change) -> Path:
    """A copy of a sample file after `change(arrays)`."""
    with np.load(SAMPLE / name) as archive:
        arrays = {key: archive[key] for key in archive.files}
    change(arrays)
    np.savez(tmp_path / name, **arrays)
    return tmp_path / name


def flip(array: str, row: int):
    def change(arrays):
        arrays[array].reshape(len(arrays[array]), -1)[row, -1] ^= 1

    return change


with_outputs = [
    (name, array)
    for name in CHECKS
    for array in np.load(SAMPLE / name).files
    if array not in ("fp16", "tag", "cycles_A", "cycles_B") and not array.endswith("_in")
]


@pytest.mark.parametrize("name, array", with_outputs)
def test_one_flipped_bit_of_any_recorded_array_is_one_mismatch(tmp_path, name, array):
    tallies = CHECKS[name](altered(tmp_path, name, flip(array, 37)))
    assert sum(tally.mismatched for tally in tallies) == 1
    (wrong,) = [tally for tally in tallies if not tally.ok]
    assert "[37]" in wrong.first and "got" in wrong.first and "recorded" in wrong.first


@pytest.mark.parametrize("name", CHECKS)
def test_two_flipped_bits_are_two_mismatches(tmp_path, name):
    array = next(array for known, array in with_outputs if known == name)

    def change(arrays):
        flip(array, 3)(arrays)
        flip(array, 90)(arrays)

    (wrong,) = [tally for tally in CHECKS[name](altered(tmp_path, name, change)) if not tally.ok]
    assert wrong.mismatched == 2 and "[3]" in wrong.first


def test_the_first_difference_shows_operands_and_both_values(tmp_path):
    (wrong,) = [t for t in formats.check_vec_alu(altered(tmp_path, "vec_alu.npz", flip("VADD_out", 5))) if not t.ok]
    with np.load(SAMPLE / "vec_alu.npz") as archive:
        recorded, operands = int(archive["VADD_out"][5]), [f"{int(word):06X}" for word in archive["VADD_in"][5]]
    assert wrong.first == (
        f"VADD out[5]: got {recorded:06X}, recorded {recorded ^ 1:06X} for {' '.join(operands)}"
    )  # fmt: skip


# ---- faults in the arithmetic ----------------------------------------------------------------------------


def reciprocal(monkeypatch):
    table = mxfp7.RECIPROCAL.copy()
    table[13] = 2521
    monkeypatch.setattr(mxfp7, "RECIPROCAL", table)


def coefficient(monkeypatch):
    tables = {name: tuple(column.copy() for column in columns) for name, columns in seeds.seed_tables().items()}
    tables["rsqrt"][0][40] += 4
    monkeypatch.setattr(seeds, "seed_tables", lambda: tables)
    for cached in (seeds._fractions, seeds._rounded):
        monkeypatch.setattr(seeds, cached.__name__, cached.__wrapped__)


def saturating(monkeypatch):
    ours = alu.exp2
    monkeypatch.setattr(alu, "exp2", lambda a, wrap=False: ours(a))


def even_ties(monkeypatch):
    """Products rounded to nearest even, as IEEE has it."""
    product = lambda a, b, c: e8m15.from_float(e8m15.to_float(a) * e8m15.to_float(b))  # noqa: E731
    monkeypatch.setitem(alu._OPERATIONS, alu.AluOp.VMUL, product)


def kept_sign(monkeypatch):
    monkeypatch.setitem(alu._OPERATIONS, alu.AluOp.VMOV, lambda a, b, c: a.copy())


def swapped_sum(monkeypatch):
    add = alu.add
    monkeypatch.setattr(alu, "add", lambda a, c: add(c, a))


def infinite(monkeypatch):
    convert = e8m15.to_fp16
    monkeypatch.setattr(
        e8m15, "to_fp16", lambda w: np.where(convert(w) == 0x7BFF, 0x7C00, convert(w)).astype(np.uint16)
    )


@pytest.mark.parametrize(
    "fault, name",
    [(reciprocal, "mx_quant.npz"), (coefficient, "vec_alu_extra.npz"),
     (saturating, "errata_exp2_wrap.npz"), (even_ties, "vec_alu_extra.npz"), (kept_sign, "vec_alu.npz"),
     (swapped_sum, "vec_alu.npz"), (swapped_sum, "vec_alu_extra.npz"), (infinite, "vec_cvt.npz")],
)  # fmt: skip
def test_a_fault_in_the_arithmetic_is_seen(monkeypatch, fault, name):
    fault(monkeypatch)
    assert sum(tally.mismatched for tally in CHECKS[name](SAMPLE / name)) > 0


# ---- files that are not what they should be ----------------------------------------------------------------


def test_a_missing_array_is_named(tmp_path):
    path = altered(tmp_path, "vec_cvt.npz", lambda arrays: arrays.pop("e8_to_f32"))
    with pytest.raises(ValueError, match="vec_cvt.npz: array 'e8_to_f32' is missing; it holds e8_in"):
        formats.check_vec_cvt(path)


@pytest.mark.parametrize("name", CHECKS)
def test_an_array_that_nothing_compares_is_named(tmp_path, name):
    path = altered(tmp_path, name, lambda arrays: arrays.update(new_out=np.zeros(3)))
    with pytest.raises(ValueError, match=f"{name}: nothing compares new_out"):
        CHECKS[name](path)


def test_lengths_that_disagree_are_refused(tmp_path):
    path = altered(tmp_path, "vec_cvt.npz", lambda arrays: arrays.update(f16_to_e8=arrays["f16_to_e8"][:-1]))
    with pytest.raises(ValueError, match="FP16 to E8M15: 3000 inputs, but f16_to_e8 is"):
        formats.check_vec_cvt(path)


def single_array() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    return stream.getvalue()


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 truncated", single_array()],
                         ids=["empty", "text", "truncated", "npy"])  # fmt: skip
def test_a_file_that_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "mx_quant.npz").write_bytes(content)
    with pytest.raises(ValueError, match="mx_quant.npz: not a readable archive"):
        formats.check_mx_quant(tmp_path / "mx_quant.npz")
