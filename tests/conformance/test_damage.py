"""Damaged golden files through `kohakutpu golden`: refused by name (status 2) or a counted mismatch, never a pass."""

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.cli.main import main
from kohakutpu.conformance.arrays import GoldenError, open_arrays
from kohakutpu.conformance.registry import CHECKS

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "golden"
REFUSED, MISMATCH = 2, 1
CLUSTER, MESH, LINKS = "cluster.npz", "mesh.npz", "mesh_links.npz"
CORE, PUBLISHED, ALU = "vector_core.npz", "vector_core_published.npz", "vec_alu.npz"
STREAM = "flits/linear_silu_fused.txt"
ARCHIVES = [name for name in CHECKS if name.endswith(".npz")]
F1, F3 = "f1_cudata_fused_", "f3_preq_3x3x4x1_"


def golden_status(folder: Path, capsys) -> tuple[int, str]:
    """Exit status of the command and everything it said."""
    status = main(["golden", str(folder)])
    said = capsys.readouterr()
    return status, said.out + said.err


def sampled(name: str) -> dict[str, np.ndarray]:
    with np.load(SAMPLE / name, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def drop(name):
    return lambda arrays: arrays.pop(name)


def cut(name, length=None):
    return lambda arrays: arrays.update({name: arrays[name][: length if length is not None else -1]})


def put(name, value):
    return lambda arrays: arrays.update({name: np.asarray(value)})


def zero(name):
    return lambda arrays: arrays.update({name: np.zeros_like(arrays[name])})


def flip(name, *at):
    def change(arrays):
        arrays[name][at] ^= 1

    return change


def every(*changes):
    return lambda arrays: [change(arrays) for change in changes]


def case_without_chunks(arrays):
    prefix = "c001_"
    arrays[prefix + "chunks"] = np.int64(0)
    for name in ("A_q", "A_s", "B_s"):
        arrays[prefix + name] = arrays[prefix + name][:, :0]
    for name in ("B_q", "C_fp16", "C_fp22", "gemm_cycles", "sweep_cycles"):
        arrays[prefix + name] = arrays[prefix + name][:0]


def only_the_stimulus(prefix, where):
    def change(arrays):
        keep = arrays[prefix + where] == 0
        for name in ("flits", "cycle", where):
            arrays[prefix + name] = arrays[prefix + name][keep]

    return change


def other_answer(arrays):
    """One bit of a word that the recorded memory answered with."""
    for index in range(int(arrays["n_programs"])):
        if "chain" in str(arrays[f"p{index:03d}_errata"]):
            continue
        rows = np.flatnonzero(arrays[f"p{index:03d}_flit_dir"] == 2)
        if len(rows):
            arrays[f"p{index:03d}_flits"][rows[0], 0] ^= 1
            return
    raise AssertionError("no memory answer in the sample")


# (file, change, status, what the message must hold)
DAMAGES = {
    # a run that vanishes, arrays that nothing reads
    "mesh-run-without-flits": (MESH, drop(F1 + "flits"), REFUSED, F1 + "flits"),
    "mesh-run-without-memory": (MESH, drop(F1 + "mem_after"), REFUSED, F1),
    "mesh-run-without-waits": (MESH, drop(F1 + "waits"), REFUSED, F1 + "waits"),
    "mesh-unknown-array": (MESH, put("f9_new_extra", 1), REFUSED, "f9_new_extra"),
    "links-unknown-array": (LINKS, put("r00_extra", 1), REFUSED, "r00_extra"),
    "links-run-without-gates": (LINKS, drop("r05_gates"), REFUSED, "r05_gates"),
    "cluster-unknown-array": (CLUSTER, put("c000_extra", 1), REFUSED, "c000_extra"),
    "core-unknown-array": (CORE, put("p000_extra", 1), REFUSED, "p000_extra"),
    "core-argument-of-a-finished-run": (CORE, put("p000_signal_arg", 7), REFUSED, "p000_signal_arg"),
    "published-unknown-array": (PUBLISHED, put("p000_extra", 1), REFUSED, "p000_extra"),
    "published-without-a-label": (PUBLISHED, drop("p000_dbg_fault"), REFUSED, "p000_dbg_fault"),
    # fewer words than there were
    "mesh-memory-cut": (MESH, every(cut(F1 + "mem_before", 1), cut(F1 + "mem_after", 1)), REFUSED, F1 + "mem_before"),
    "mesh-memory-after-cut": (MESH, cut(F1 + "mem_after"), REFUSED, F1 + "mem_after"),
    "links-memory-cut": (LINKS, every(cut("r03_mem_before", 9), cut("r03_mem_after", 9)), REFUSED, "r03_mem_before"),
    "mesh-flits-cut": (MESH, cut(F1 + "flits"), REFUSED, F1 + "dir"),
    "mesh-waits-cut": (MESH, cut(F1 + "waits"), REFUSED, F1 + "waits"),
    "mesh-no-waits": (MESH, cut(F1 + "waits", 0), REFUSED, F1 + "waits"),
    "links-gates-cut": (LINKS, cut("r00_gates", 4), REFUSED, "r00_gates"),
    "core-l1-cut": (CORE, cut("p000_l1_after"), REFUSED, "p000_l1_after"),
    "published-l1-cut": (PUBLISHED, cut("p000_l1_after", 100), REFUSED, "p000_l1_after"),
    "published-flits-cut": (PUBLISHED, cut("p000_flits"), REFUSED, "p000_flit_dir"),
    "cluster-results-cut": (CLUSTER, cut("c000_C_fp22"), REFUSED, "c000_C_fp22"),
    "cluster-cycles-cut": (CLUSTER, cut("c000_gemm_cycles"), REFUSED, "c000_gemm_cycles"),
    "alu-outputs-cut": (ALU, cut("VADD_out"), REFUSED, "VADD"),
    "alu-empty": (ALU, every(*(cut(f"VADD_{part}", 0) for part in ("in", "out", "pred"))), REFUSED, "VADD"),
    # lowered counts, and counts of what is not there
    "cluster-one-case": (CLUSTER, put("n_cases", 1), REFUSED, "c001_"),
    "cluster-no-case": (CLUSTER, put("n_cases", 0), REFUSED, "n_cases"),
    "cluster-a-case-too-many": (CLUSTER, put("n_cases", 99), REFUSED, "c008_"),
    "cluster-count-no-number": (CLUSTER, put("n_cases", "8"), REFUSED, "n_cases"),
    "links-two-runs": (LINKS, put("n_runs", 2), REFUSED, "r02_"),
    "core-one-program": (CORE, put("n_programs", 1), REFUSED, "p001_"),
    "published-one-program": (PUBLISHED, put("n_programs", 1), REFUSED, "p001_"),
    # cases that would compare nothing
    "cluster-chunks-zero": (CLUSTER, put("c001_chunks", 0), REFUSED, "c001_chunks"),
    "cluster-case-without-chunks": (CLUSTER, case_without_chunks, REFUSED, "c001_chunks"),
    "cluster-no-rows": (CLUSTER, put("c001_gm", 0), REFUSED, "c001_gm"),
    "core-mask-of-nothing": (CORE, zero("p000_l1_mask"), REFUSED, "p000_l1_mask"),
    "mesh-nothing-came-back": (MESH, only_the_stimulus(F3, "dir"), REFUSED, F3 + "dir"),
    "mesh-nothing-injected": (MESH, put(F3 + "dir", np.ones(8, np.uint8)), REFUSED, F3 + "dir"),
    "links-nothing-answered": (LINKS, only_the_stimulus("r03_", "link"), REFUSED, "r03_link"),
    "links-unknown-link": (LINKS, lambda a: np.put(a["r03_link"], -1, 8), REFUSED, "r03_link"),
    "published-every-one-left-out": (
        PUBLISHED, every(*(put(f"p{i:03d}_errata", "chain-overlap") for i in range(12))),
        MISMATCH, "nothing was compared",
    ),
    # memory after
    "core-memory-dropped": (CORE, drop("p010_memafter1"), REFUSED, "p010_memafter1"),
    "core-memory-base-dropped": (CORE, drop("p010_memafter0_base"), REFUSED, "p010_memafter0_base"),
    "core-memory-part-skipped": (
        CORE, every(drop("p010_memafter0"), drop("p010_memafter0_base")), REFUSED, "p010_memafter1",
    ),
    "core-memory-part-gone": (
        CORE, every(drop("p010_memafter1"), drop("p010_memafter1_base")), MISMATCH, "recorded nothing",
    ),
    "core-memory-odd-base": (CORE, put("p010_memafter0_base", 8), REFUSED, "p010_memafter0"),
    # arrays that used to be read past
    "cluster-significand": (CLUSTER, flip("c007_A_q", 0, 0), MISMATCH, "side A significands"),
    "cluster-scale": (CLUSTER, flip("c007_B_s", 0, 0), MISMATCH, "side B scales"),
    "cluster-one-source-only": (CLUSTER, drop("c007_Bt_fp16"), REFUSED, "c007_Bt_fp16"),
    "cluster-no-cycles": (CLUSTER, zero("c000_sweep_cycles"), REFUSED, "c000_sweep_cycles"),
    "published-answer": (PUBLISHED, other_answer, MISMATCH, "(address, data) read"),
    "published-end": (PUBLISHED, put("p000_signal_arg", 1), MISMATCH, "its last signal"),
    # values that nothing can hold
    "cluster-misshapen": (CLUSTER, put("c001_gm", 7), REFUSED, "c001_A_q"),
    "cluster-anchor": (CLUSTER, put("c001_anchor", 1 << 40), REFUSED, "case 001"),
    "cluster-other-dtype": (CLUSTER, lambda a: a.update(c000_A_q=a["c000_A_q"].astype(np.int16)), REFUSED, "c000_A_q"),
    "core-descriptor": (CORE, lambda a: np.put(a["p000_desc"], 1, 99), REFUSED, "p000"),
    "core-address": (CORE, lambda a: np.put(a["p010_mem_addr"], 0, 3), REFUSED, "p010_mem_addr"),
    "links-gate-kind": (LINKS, lambda a: np.put(a["r00_gates"], 1, 9), REFUSED, "r00_gates"),
    "links-erratum": (LINKS, put("r00_errata", "caps-bufers"), REFUSED, "caps-bufers"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_arrays_do_not_pass(tmp_path, capsys, damage):
    name, change, expected, message = DAMAGES[damage]
    arrays = sampled(name)
    change(arrays)
    np.savez(tmp_path / name, **arrays)
    status, said = golden_status(tmp_path, capsys)
    assert status == expected, said
    assert message in said and name in said


def test_the_damages_start_from_files_that_pass():
    for name in {name for name, *_ in DAMAGES.values()}:
        assert all(tally.ok for tally in CHECKS[name](SAMPLE / name)), name


# ---- bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.parametrize("content", [b"", b"junk\n", b"PK\x03\x04 truncated"], ids=["empty", "text", "truncated"])
def test_what_is_no_archive_is_refused(tmp_path, capsys, name, content):
    (tmp_path / name).write_bytes(content)
    status, said = golden_status(tmp_path, capsys)
    assert status == REFUSED and f"{name}: not a readable archive" in said


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_rotten_byte_in_any_array_is_refused(tmp_path, name):
    """The last data byte of a member: of some arrays a check reads every word, of others none."""
    content = (SAMPLE / name).read_bytes()
    with zipfile.ZipFile(SAMPLE / name) as archive:
        members = archive.infolist()
    for member in members[:: max(1, len(members) // 10)]:
        rotten = bytearray(content)
        start = member.header_offset
        data = start + 30 + int.from_bytes(content[start + 26 : start + 28], "little") \
            + int.from_bytes(content[start + 28 : start + 30], "little")  # fmt: skip
        rotten[data + member.compress_size // 2] ^= 0x10
        (tmp_path / name).write_bytes(rotten)
        array = re.escape(member.filename.removesuffix(".npy"))
        with pytest.raises(GoldenError, match=f"{name}: array '{array}' is not readable"):
            open_arrays(tmp_path / name)


def test_a_rotten_byte_ends_the_command(tmp_path, capsys):
    """An array that no check compares: np.load would never have looked at it."""
    arrays = sampled(MESH)
    np.savez(tmp_path / MESH, **arrays)
    content = (tmp_path / MESH).read_bytes()
    wanted = arrays["f2_fill_gemm_fused_2x2x2_bias_fp16"].tobytes()
    with zipfile.ZipFile(tmp_path / MESH) as archive:
        start = archive.getinfo("f2_fill_gemm_fused_2x2x2_bias_fp16.npy").header_offset
    at = content.index(wanted, start) + 7
    (tmp_path / MESH).write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    status, said = golden_status(tmp_path, capsys)
    assert status == REFUSED and "f2_fill_gemm_fused_2x2x2_bias_fp16" in said


def member(shape, words):
    """An .npy member whose header gives a shape and whose data has so many words."""
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8 * words)


@pytest.mark.parametrize(
    "members, message",
    [([("a.npy", member("(2,)", 3))], "more in it than its header says"), ([("a.npy", member("(4,)", 3))], "'a'"),
     ([("a.npy", b"")], "'a'"), ([("a.txt", b"x")], "a.txt"), ([], "holds no array"),
     ([("a.npy", member("(1 << 60,)", 3))], "'a'"), ([("a.npy", member("(", 3))], "'a'")],
    ids=["surplus", "short", "empty", "other", "none", "shape-no-literal", "header-broken"],
)  # fmt: skip
def test_a_member_that_is_no_array_is_refused(tmp_path, members, message):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    with pytest.raises(GoldenError, match=f"x.npz: .*{re.escape(message)}"):
        open_arrays(tmp_path / "x.npz")


def test_a_member_that_occurs_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", member("(3,)", 3))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", member("(3,)", 3))
    with pytest.raises(GoldenError, match="a.npy occurs twice"):
        open_arrays(tmp_path / "x.npz")


# ---- instruction streams ------------------------------------------------------------------------------------------

FIRST = r"^0 1,1   0 .*$"
STREAM_DAMAGES = {
    "empty": (r"(?s).*", "", REFUSED, "no 'machine'"),
    "commented-out": (r"(?m)^(?=\d)", "# ", REFUSED, "holds no flits"),
    "cut": (r"(?s)\n1 1,0   1 .*", "\n", REFUSED, "no total"),
    "half-a-line": (r"(?m)^(0 1,1   1 \w{40})\w+ .*$", r"\1", REFUSED, "line 14 is neither"),
    "a-flit-gone": (rf"(?m){FIRST}\n", "", MISMATCH, "flits"),
    "a-flit-twice": (rf"(?m)({FIRST}\n)", r"\1\1", MISMATCH, "flits"),
    "another-place": (r"(?m)^0 1,1   0", "0 1,1   2", MISMATCH, "flits 0"),
    "no-knob": (r"nk=2;", ";", REFUSED, "nk"),
    "no-steps": (r"steps:", "stops:", REFUSED, "no steps"),
    "broken-steps": (r"\['seed', 512\], \['kick', 1, 1", "['seed', 512, ['kick', 1, 1", REFUSED, "steps"),
    "no-agent": (r"agent \(1,1\)", "agent ", REFUSED, "linear_silu_fused.txt"),
}


@pytest.mark.parametrize("damage", STREAM_DAMAGES)
def test_damaged_streams_do_not_pass(tmp_path, capsys, damage):
    pattern, replacement, expected, message = STREAM_DAMAGES[damage]
    text = (SAMPLE / STREAM).read_text()
    changed = re.sub(pattern, replacement, text)
    assert changed != text
    (tmp_path / "flits").mkdir()
    (tmp_path / STREAM).write_text(changed)
    status, said = golden_status(tmp_path, capsys)
    assert status == expected, said
    assert message in said


def test_a_stream_that_is_no_text_is_refused(tmp_path, capsys):
    (tmp_path / "flits").mkdir()
    (tmp_path / STREAM).write_bytes(b"\xff\xfe\x00")
    status, said = golden_status(tmp_path, capsys)
    assert status == REFUSED and STREAM in said
