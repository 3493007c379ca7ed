# amaranth: UnusedElaboratable=no
"""The port checker finds every kind of violating endpoint, and nothing wrong with a right one."""

import sys
from pathlib import Path

import pytest

from kohakutpu.isa.flit import node
from sim import port_rules
from sim.port_checker import Checked

sys.path.insert(0, str(Path(__file__).parent))
from support.harness import run_bench  # noqa: E402
from support.template import COUNTED, FOUND, Interposer, RudeSender, Template  # noqa: E402
from support.top import LinkTop  # noqa: E402

# What `conform` says to each violator of the second group.
VERDICTS = {
    "busy_by_type": "busy is a function of the offered flit",
    "holds_unknown": "busy is a function of the offered flit",
    "keeps_unknown": "the endpoint is stuck: the acceptance of 100 flits of type 0x9",
    "silent_when_wedged": "a CU_CTRL answer of a wedged endpoint was not reached",
    "wrong_depth": "CU_STATUS says",
    "wrong_buffers": "CU_CAPS says 4 buffers, bursts are taken for buffers [0, 1]",
    "lost_completion": "40 completions of 40 instructions",
    "withheld_phase": "8 completions once the link was free",
}


def run(rule, test, breaks=None, rude=None, simulator="icarus", outstanding=256):
    endpoint = Template(x=2, y=1, buffers=2, inst_depth=12, recv_depth=8)
    if breaks:
        endpoint = Interposer(endpoint, breaks=breaks)
    checked = Checked(endpoint, node=node(2, 1), bound=400, outstanding=outstanding)
    if rude is not None:
        checked = RudeSender(checked, withdraws=rude)
    return run_bench(LinkTop(checked), "bench_checker", name="checked", simulator=simulator, tests=[test], rule=rule)


@pytest.mark.parametrize("simulator", ["verilator", "icarus"])
def test_a_right_endpoint_passes(simulator):
    run("none", "counts_the_rule", simulator=simulator)
    run("none", "conforms", simulator=simulator)


@pytest.mark.parametrize("rule", COUNTED)
def test_a_broken_rule_is_counted(rule):
    run(rule, "counts_the_rule", breaks=rule)


@pytest.mark.parametrize("withdraws", [True, False])
def test_a_rude_sender_is_counted(withdraws):
    run("in_withdrawn" if withdraws else "in_changed", "counts_the_rule", rude=withdraws)


def test_more_than_the_checker_can_follow_is_counted():
    run("overrun", "counts_the_rule", outstanding=2)


@pytest.mark.parametrize("breaks", FOUND)
def test_a_violating_endpoint_does_not_conform(breaks):
    run(VERDICTS[breaks], "conforms", breaks=breaks)


def test_every_rule_has_a_violator():
    assert set(port_rules.RULES) == set(COUNTED) | {"in_withdrawn", "in_changed", "overrun"}


def test_an_unknown_break_is_refused():
    with pytest.raises(TypeError, match="breaks 'sleep'; one of out_withdrawn"):
        Interposer(None, breaks="sleep")
