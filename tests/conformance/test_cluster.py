"""The golden cluster cases: they pass, they count, none is slower, and one flipped bit is seen."""

from pathlib import Path

import numpy as np
import pytest

from kohakutpu.conformance import cluster as checks
from kohakutpu.conformance.arrays import open_arrays
from kohakutpu.conformance.cluster import Case, ClusterBench, check_cluster
from kohakutpu.model.cluster import Cluster

SAMPLE = Path(__file__).parents[1] / "data" / "golden" / "cluster.npz"
SAMPLED_CASES, FULL_CASES = 8, 49


def test_every_case_is_equal_and_none_is_slower(golden):
    path = golden / "cluster.npz"
    fp16, raw, operands = check_cluster(path)
    with np.load(path, allow_pickle=False) as data:
        count = int(data["n_cases"])
        elements = sum(data[f"c{i:03d}_C_fp16"].size for i in range(count))
        sources = [data[f"c{i:03d}_{name}"].size for i in range(count) if f"c{i:03d}_A_fp16" in data
                   for name in ("A_q", "A_s", "B_q", "B_s")]  # fmt: skip
        chunks = sum(int(data[f"c{i:03d}_chunks"]) for i in range(count))
    assert count in (SAMPLED_CASES, FULL_CASES)
    for tally in (fp16, raw):
        assert (tally.ok, tally.compared, tally.first, tally.left_out) == (True, elements, "", {})
    assert (operands.ok, operands.left_out) == (True, {}) and operands.compared == sum(sources)
    assert len(fp16.cycles) == 4 * chunks
    assert [row for row in fp16.cycles if row[2] > row[1]] == []


def test_cycles_follow_the_published_forms():
    data = open_arrays(SAMPLE)
    for number in range(SAMPLED_CASES):
        case = Case(data.under(f"c{number:03d}_"), f"case {number:03d}")
        fp16, raw = checks.Tally("", "", ""), checks.Tally("", "", "")
        checks.run_case(case, fp16, raw)
        subtiles = case.gm * case.gn
        sweep = 20 + (case.nk - 1) * max(subtiles, 5) + subtiles
        expected = [sweep, sweep + 7, subtiles + 9, 2 * subtiles + 8] * case.chunks
        assert [ours for _, _, ours in fp16.cycles] == expected


def copy_with(tmp_path, change):
    with np.load(SAMPLE, allow_pickle=False) as data:
        arrays = {key: data[key] for key in data.files}
    change(arrays)
    np.savez(tmp_path / "cluster.npz", **arrays)
    return check_cluster(tmp_path / "cluster.npz")


@pytest.mark.parametrize("array, tally", [("C_fp16", 0), ("C_fp22", 1)])
@pytest.mark.parametrize("case", range(SAMPLED_CASES))
def test_one_flipped_result_bit_is_one_mismatch(tmp_path, array, tally, case):
    def change(arrays):
        arrays[f"c{case:03d}_{array}"][-1, 1, 2] ^= 1

    tallies = copy_with(tmp_path, change)
    assert [t.mismatched for t in tallies] == [int(tally == i) for i in range(3)]
    assert f"case {case:03d}" in tallies[tally].first and "element (1, 2)" in tallies[tally].first


@pytest.mark.parametrize("key, change", [
    ("A_q", lambda a: a ^ 1), ("B_q", lambda a: a ^ 1), ("A_s", lambda a: a ^ 1), ("B_s", lambda a: a ^ 8),
    ("anchor", lambda a: a + 1),
])  # fmt: skip
def test_altered_operands_are_seen(tmp_path, key, change):
    def alter(arrays):
        value = arrays[f"c002_{key}"]
        if value.ndim:
            value[0, 0] = change(value[0, 0])
        else:
            arrays[f"c002_{key}"] = change(value)

    assert all(tally.mismatched for tally in copy_with(tmp_path, alter)[:2])


@pytest.mark.parametrize("key", ["A_q", "A_s", "B_q", "B_s"])
def test_operands_that_the_quantiser_does_not_make_are_seen(tmp_path, key):
    """The case runs from its FP16 matrices, so only the comparison with the quantiser reads these."""

    def alter(arrays):
        arrays[f"c007_{key}"][-1, -1] ^= 1

    tallies = copy_with(tmp_path, alter)
    assert [tally.mismatched for tally in tallies] == [0, 0, 1]
    assert "case 007" in tallies[2].first and f"side {key[0]}" in tallies[2].first


def test_altered_quantiser_sources_are_seen(tmp_path):
    def alter(arrays):
        arrays["c007_A_fp16"][0, 0] ^= 0x8000

    assert all(tally.mismatched for tally in copy_with(tmp_path, alter))


def test_a_cluster_that_gets_stuck_is_a_mismatch(monkeypatch):
    monkeypatch.setattr(ClusterBench.run, "__defaults__", (0, 20))
    fp16 = check_cluster(SAMPLE)[0]
    assert fp16.mismatched and "case 000: cycle" in fp16.first and "stuck" in fp16.first


@pytest.mark.parametrize("fault", ["cluster-l1-bit", "cluster-tile-bit", "cluster-pacing", "cluster-bank-stuck"])
def test_a_faulty_model_does_not_pass(monkeypatch, fault):
    monkeypatch.setattr(
        checks, "Cluster", lambda *args, **options: Cluster(*args, **(options | {"faults": frozenset({fault})}))
    )
    assert any(tally.mismatched for tally in check_cluster(SAMPLE))
