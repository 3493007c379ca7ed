"""The golden checks of the vector core: they pass, count and notice; and its links in whole-mesh runs."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.conformance import vector
from kohakutpu.conformance.vector import VectorBench, check_vector_core, check_vector_core_published, integer
from kohakutpu.errata import parse
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import CU_SIGNAL, SignalCode
from kohakutpu.model.vector import FAULTS

DATA = Path(__file__).resolve().parents[1] / "data"
SAMPLE = DATA / "golden"
FULL = DATA.parents[2] / "shared" / "golden"
FOLDERS = [(SAMPLE, 0)] + [(FULL, 1)] * FULL.is_dir()
folders = pytest.mark.parametrize("folder, column", FOLDERS, ids=["sample", "full"][: len(FOLDERS)])
CORE, PUBLISHED = "vector_core.npz", "vector_core_published.npz"


def counts(tallies):
    return tuple(tally.compared for tally in tallies)


@folders
def test_vector_core(folder, column):
    tallies = check_vector_core(folder / CORE)
    assert [tally.first for tally in tallies if not tally.ok] == []
    assert counts(tallies) == [(18, 9204, 1008), (241, 123342, 1904)][column]
    assert not any(tally.left_out for tally in tallies)
    assert len(tallies[0].cycles) == (11, 25)[column]


@folders
def test_vector_core_published(folder, column):
    tallies = check_vector_core_published(folder / PUBLISHED)
    assert [tally.first for tally in tallies if not tally.ok] == []
    assert counts(tallies) == [(11, 42, 5632, 640), (105, 436, 53760, 1904)][column]
    assert tallies[0].left_out == [{"chain-overlap": 1}, {"chain-overlap": 52}][column]
    assert len(tallies[0].cycles) == (10, 97)[column]


@folders
def test_cycles_are_at_most_half_of_the_published_ones(folder, column):
    rows = check_vector_core(folder / CORE)[0].cycles + check_vector_core_published(folder / PUBLISHED)[0].cycles
    assert rows
    assert [row for row in rows if 2 * row[2] > row[1]] == []


# ---- a difference is seen and described -----------------------------------------------------------------------


def altered(tmp_path, name, change):
    """A copy of a sample file after `change(arrays)`."""
    with np.load(SAMPLE / name) as archive:
        arrays = {key: archive[key] for key in archive.files}
    change(arrays)
    np.savez(tmp_path / name, **arrays)
    return tmp_path / name


def failing(tallies):
    return {tally.what.split(": ")[1]: tally.first for tally in tallies if not tally.ok}


def test_a_flipped_l1_bit_is_seen(tmp_path):
    def change(arrays):
        row = np.flatnonzero(arrays["p000_l1_mask"])[5]
        arrays["p000_l1_after"][row, 3] ^= 1 << 7

    assert list(failing(check_vector_core(altered(tmp_path, CORE, change)))) == ["L1 after"]


def test_a_masked_l1_word_is_not(tmp_path):
    def change(arrays):
        arrays["p004_l1_mask"][17] = False
        arrays["p004_l1_after"][17] ^= 1

    with np.load(SAMPLE / CORE) as archive:
        assert archive["p004_l1_mask"][17]
    before = counts(check_vector_core(SAMPLE / CORE))[1]
    tallies = check_vector_core(altered(tmp_path, CORE, change))
    assert not failing(tallies)
    assert tallies[1].compared == before - 1


def test_another_end_is_seen(tmp_path):
    def change(arrays):
        arrays["p014_signal_arg"] = np.int64(3)

    (first,) = failing(check_vector_core(altered(tmp_path, CORE, change))).values()
    assert "F_VSRC through sc" in first and "code 4 argument 3" in first


def test_another_memory_word_is_seen(tmp_path):
    def change(arrays):
        arrays["p010_memafter1"][0, 0] ^= 1

    assert list(failing(check_vector_core(altered(tmp_path, CORE, change)))) == ["memory after"]


@pytest.mark.parametrize("kind, label", [(0, "words read"), (1, "words read"), (8, "words read"), (6, "signals")])
def test_other_traffic_is_seen(tmp_path, kind, label):
    """A payload bit of a recorded request, write, peer flit or signal; and a flit too many."""

    def flip(arrays):
        for index in range(int(arrays["n_programs"])):
            prefix = f"p{index:03d}_"
            if arrays[prefix + "signal_code"] == 0 and kind == 6:
                continue
            for row, direction in zip(arrays[prefix + "flits"], arrays[prefix + "flit_dir"], strict=True):
                if direction == 1 and (int(row[8]) >> 12) & 15 == kind:
                    row[7] ^= 1 << 2
                    return
        raise AssertionError(f"no flit of type {kind} in the sample")

    found = failing(check_vector_core_published(altered(tmp_path, PUBLISHED, flip)))
    assert [name for name in found if name.startswith(label)]

    def double(arrays):
        for key in ("flits", "flit_dir", "flit_cycle"):
            arrays[f"p005_{key}"] = np.concatenate([arrays[f"p005_{key}"], arrays[f"p005_{key}"][-2:]])

    assert failing(check_vector_core_published(altered(tmp_path, PUBLISHED, double)))


def test_wrong_errata_are_seen(tmp_path):
    """Every reproduced erratum that a sampled recording lists matters to it."""
    needed = set()
    with np.load(SAMPLE / PUBLISHED) as archive:
        lists = [str(archive[f"p{i:03d}_errata"]) for i in range(int(archive["n_programs"]))]
    for index, names in enumerate(lists):
        if not names or "chain-overlap" in names:
            continue
        for name in names.split(","):

            def change(arrays, index=index, name=name, names=names):
                arrays[f"p{index:03d}_errata"] = np.array(",".join(n for n in names.split(",") if n != name))

            if failing(check_vector_core_published(altered(tmp_path, PUBLISHED, change))):
                needed.add(name)
    assert needed == {"exp2-wrap", "fp32-store", "vcvt-late", "vote-register", "expsum-stale-predicate"}


def test_unknown_erratum_is_refused(tmp_path):
    path = altered(tmp_path, CORE, lambda arrays: arrays.update(p003_errata=np.array("exp3-wrap")))
    with pytest.raises(ValueError, match="'p003_errata' names unknown errata exp3-wrap"):
        check_vector_core(path)


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - {"vector-lost-ack", "vector-l1-bit"}))
def test_an_injected_fault_fails_the_check(monkeypatch, fault):
    class Broken(VectorBench):
        def __init__(self, **options):
            super().__init__(faults=frozenset({fault}), **options)

    monkeypatch.setattr(vector, "VectorBench", Broken)
    assert failing(check_vector_core(SAMPLE / CORE))


# ---- the vector core inside recorded whole-mesh runs -----------------------------------------------------------------

with np.load(DATA / "vector_links.npz") as _archive:
    LINKS = {key: _archive[key] for key in _archive.files}
RUNS = sorted({key[:4] for key in LINKS})


@pytest.mark.parametrize("run", RUNS, ids=[f"{run[:3]}-{LINKS[run + 'name']}" for run in RUNS])
def test_link_replay(run):
    """What a recorded core was sent, in its cycles: the same signals, replies and node flits in order by receiver.

    Reads are answered by the bench, from memory as it was before the run or, where the kernel reads what others
    wrote, after it. Cycle counts in completions and CU_CTRL values do not bind.
    """
    named = str(LINKS[run + "errata"])
    errata = parse(named.split(",")) if named else frozenset()
    flits = [Flit.from_int(integer(row)) for row in LINKS[run + "flits"]]
    sent = LINKS[run + "out"].astype(bool)
    cycles = LINKS[run + "cycle"].tolist()
    outcomes = []
    for memory in ("mem_before", "mem_after"):
        bench = VectorBench(errata=errata)
        bench.memory.update({32 * i: integer(row) for i, row in enumerate(LINKS[run + memory])})
        for flit, cycle, out in zip(flits, cycles, sent, strict=True):
            if not out and flit.type not in (FlitType.MEM_RD_RESP, FlitType.MEM_WR_ACK):
                bench.put(flit, cycle + 1)
        bench.engine.advance(cycles[-1] + 2000)
        outcomes.append(by_receiver(flit for _, flit in bench.sent))
    assert by_receiver(flit for flit, out in zip(flits, sent, strict=True) if out) in outcomes


def by_receiver(flits):
    """Signals, replies and node flits by destination, without what does not bind."""
    streams = defaultdict(list)
    for flit in flits:
        if flit.type == FlitType.CU_SIGNAL and CU_SIGNAL.get(flit.payload, "code") == SignalCode.INST_COMPLETE:
            flit = flit._replace(payload=0)
        if flit.type == FlitType.CU_CTRL:
            flit = flit._replace(payload=0)
        if flit.type in (FlitType.CU_SIGNAL, FlitType.CU_CTRL, FlitType.CU_DATA):
            streams[flit.dst].append(flit)
    return streams


def test_replayed_runs_cover_rejects_and_peers():
    names = {str(LINKS[run + "name"]) for run in RUNS}
    assert {"vector_rejected_bursts", "vector_reject_while_running"} <= names
    assert {"vdrain_peer_agent", "vdrain_peer_cluster_ack0", "remote_drain_format"} <= names
