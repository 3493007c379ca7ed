"""The peer bench on the gates of mm_mesh: 163 checks, every flit on every link in the model's cycle, and what it
settles."""

import sys
from collections import defaultdict
from pathlib import Path

import pytest

from kohakutpu.machine import load
from sim.machine import build

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "rtl"))
import peer_scenario as peer  # noqa: E402
import peer_settled as settled  # noqa: E402
from rtl_compare import model_transfers, run_job  # noqa: E402
from support.models import compare  # noqa: E402

SEED = 7


@pytest.fixture(scope="module")
def built():
    return build(load("mm_mesh"), simulator="verilator", agent="bench")


@pytest.fixture(scope="module")
def bench(built, tmp_path_factory):
    """(result, transfers) of the peer bench on the gates under Verilator."""
    return run_job(built, "peer_bench", tmp_path_factory.mktemp("peer") / "flits", operands=SEED)


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
    late, _ = model_transfers(
        load("mm_mesh"), [(cycle + 1, flits) for cycle, flits in result["injected"]], result["cycles"]
    )
    with pytest.raises(AssertionError, match="transfer 0 of"):
        compare(transfers, late)


def evidence(built, flits, program) -> settled.Evidence:
    """What the gates did with a program of the bench's four phases."""
    groups = settled.groups(program)
    result, transfers = run_job(
        built, "play", flits, groups=groups, memory=[], quiet=300, budget=60_000, look=settled.IMAGES
    )
    links = defaultdict(list)
    for _, link, flit in transfers:
        links[link].append(flit)
    return settled.Evidence(links, *result["memory"])


@pytest.mark.parametrize("check", settled.CHECKS, ids=lambda check: check.__name__)
def test_settled(check, built, tmp_path):
    check(evidence(built, tmp_path / "flits", settled.CHECKS[check]))


@pytest.mark.parametrize("name", settled.BROKEN)
def test_a_program_that_is_not_so_is_seen(name, built, tmp_path):
    check, program, message = settled.BROKEN[name]
    with pytest.raises(AssertionError, match=message):
        check(evidence(built, tmp_path / "flits", program))
