"""Every flit that the published cluster sent in the link recordings, from what it was sent (mesh_links.npz).

`tests/data/cluster_links.npz` holds both sides of the cluster's link for all recordings in which it took part.
The inbound flits go in at their recorded cycles; then the outbound ones must be equal in order for each
destination, and none may come later than it did.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.conformance.cluster import ClusterBench
from kohakutpu.formats.words import WORD_BYTES
from kohakutpu.isa.flit import Flit
from kohakutpu.machine import ClusterUnit
from kohakutpu.model.cluster import FAULTS

RECORDINGS = Path(__file__).parents[1] / "data" / "cluster_links.npz"
UNIT = ClusterUnit(2, 1, tiles=512, a_entries=512, b_entries=512, inst_depth=64)
AFTER = 2000


def recordings():
    with np.load(RECORDINGS, allow_pickle=False) as archive:
        prefixes = sorted({key.rsplit("_", 1)[0] for key in archive.files})
        return {
            str(archive[f"{p}_name"]): (archive[f"{p}_flits"], archive[f"{p}_out"], archive[f"{p}_cycle"])
            for p in prefixes
        }


RUNS = recordings()


class Silent(ClusterBench):
    """The recording holds the memory's answers too."""

    def _serve(self, flit, now):
        pass


def replay(name, *, skip=True, faults=frozenset()):
    """(ours, recorded): per destination, (cycle, flit) in order."""
    flits, out, cycles = RUNS[name]
    bench = Silent(UNIT, skip=skip, faults=faults)
    recorded = defaultdict(list)
    for words, sent, cycle in zip(flits, out, cycles.tolist(), strict=True):
        flit = Flit.from_int(int.from_bytes(words.astype("<u4").tobytes(), "little"))
        if sent:
            recorded[flit.dst].append((cycle, flit))
        else:
            bench.put(flit, cycle)
    bench.engine.advance(int(cycles.max()) + AFTER)
    ours = defaultdict(list)
    for cycle, flit in bench.received:
        ours[flit.dst].append((cycle, flit))
    return ours, recorded


def flits_of(side):
    return {dst: [flit for _, flit in sequence] for dst, sequence in side.items()}


@pytest.mark.parametrize("name", RUNS)
def test_recording(name):
    ours, recorded = replay(name)
    assert flits_of(ours) == flits_of(recorded)
    for dst, sequence in recorded.items():
        assert all(cycle <= published for (cycle, _), (published, _) in zip(ours[dst], sequence, strict=True))
    assert replay(name, skip=False)[0] == ours


def test_the_recordings_are_all_there():
    assert len(RUNS) == 27
    assert sum(int(out.sum()) for _, out, _ in RUNS.values()) == 799
    assert sum(len(flits) for flits, _, _ in RUNS.values()) * (WORD_BYTES + 4) < 1 << 20


SHOWN_IN = {
    "cluster-bank-stuck": "bank_kchunk_4x4x2x4_fp16",
    "cluster-l1-bit": "f2_fill_gemm_fused_2x2x2",
    "cluster-tile-bit": "f2_fill_gemm_fused_2x2x2",
    "cluster-pacing": "f3_kchunk_2x2x4x3",
    "cluster-last-dropped": "f1_cudata_fused",
    "cluster-drain-ack": "f1_cudata_fused",
    "cluster-lost-completion": "f2_fill_gemm_fused_2x2x2",
}


@pytest.mark.parametrize("fault, name", SHOWN_IN.items())
def test_a_fault_shows_in_a_recording(fault, name):
    ours, recorded = replay(name, faults=frozenset({fault}))
    assert flits_of(ours) != flits_of(recorded)


def test_every_fault_but_one_shows_in_a_recording():
    """No recorded burst names an acknowledgement node other than its source."""
    assert FAULTS.keys() - SHOWN_IN.keys() == {"cluster-ack-source"}
