"""The peer bench on the gates of mm_mesh: 163 checks, and every flit on every link in the model's cycle."""

import sys
from pathlib import Path

import pytest

from kohakutpu.isa.flit import FlitType
from kohakutpu.isa.signals import CU_SIGNAL, SignalCode
from kohakutpu.machine import load
from sim.machine import build

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "rtl"))
import peer_scenario as peer  # noqa: E402
from rtl_compare import model_transfers, run_job  # noqa: E402
from support.models import compare  # noqa: E402

SEED = 7


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """(result, transfers) of the peer bench on the gates under Verilator."""
    built = build(load("mm_mesh"), simulator="verilator", agent="bench")
    return run_job(built, "peer_bench", tmp_path_factory.mktemp("peer") / "flits", operands=SEED)


@pytest.fixture(scope="module")
def sent(bench):
    """Transfers by link."""
    links = {}
    for _, link, flit in bench[1]:
        links.setdefault(link, []).append(flit)
    return links


def test_163_checks_hold(bench, capsys):
    result, _ = bench
    with capsys.disabled():
        print(f"\nmm_mesh peer bench on the gates: {result['count']} checks, {len(result['errors'])} errors")
    assert result["errors"] == []
    assert result["count"] == peer.CHECKS


def test_every_flit_on_every_link_in_the_models_cycle(bench):
    result, transfers = bench
    model, system = model_transfers(load("mm_mesh"), result["injected"], result["cycles"])
    assert compare(transfers, model) > 400
    assert system.bench.received == result["received"]
    # and the comparison would see a machine that is one cycle late
    late, _ = model_transfers(load("mm_mesh"), [(cycle + 1, flits) for cycle, flits in result["injected"]], result["cycles"])
    with pytest.raises(AssertionError, match="transfer 0 of"):
        compare(transfers, late)


def test_one_granule_for_each_sub_tile(sent):
    """A drain of 9 sub-tiles to a node is 9 data words behind two descriptors."""
    to_core = [f for f in sent["cluster0.out"] if f.type == FlitType.CU_DATA and f.dst == peer.CORE]
    assert len(to_core) == peer.TILES + 2
    heads, data = peer.granules(to_core)
    assert heads == 2 and sorted(data) == list(range(peer.TILES))


def test_the_same_image_reaches_node_and_core(sent):
    """What the core's L1 holds is what the agent was sent, word for word."""
    of = {
        target: peer.granules([f for f in sent["cluster0.out"] if f.type == FlitType.CU_DATA and f.dst == target])[1]
        for target in (peer.AGENT, peer.CORE)
    }
    assert of[peer.AGENT] == of[peer.CORE]
    written = [f.payload.to_bytes(32, "little") for f in sent["vector0.out"] if f.type == FlitType.MEM_WR_DATA]
    assert written[: peer.TILES] == [of[peer.CORE][i] for i in range(peer.TILES)]


def test_one_data_received_for_each_burst(sent):
    bursts = [f for f in sent["cluster0.out"] if f.type == FlitType.CU_DATA and f.dst == peer.CORE]
    descriptors, _ = peer.granules(bursts)
    signals = [CU_SIGNAL.decode(f.payload) for f in sent["vector0.out"] if f.type == FlitType.CU_SIGNAL]
    assert sum(signal["code"] == SignalCode.DATA_RECEIVED for signal in signals) == descriptors == 2


def test_the_epilogue_reads_nothing(sent):
    """It is exact with no fill: the core never asks memory for a word."""
    assert not [f for f in sent["vector0.out"] if f.type == FlitType.MEM_RD_REQ]
