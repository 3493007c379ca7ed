"""The ladder over every transport, in front of the models: the same verdicts and bytes as without one in between."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from kohakutpu.host.bringup import Report, Verdict, climb
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.transports.recording import Replay
from kohakutpu.machine import load
from kohakutpu.model.system import System

sys.path.insert(0, str(Path(__file__).parent))
from test_transport_conformance import opened  # noqa: E402

MACHINE = load("mm_mesh")


def climbed(opener):
    """[(step, verdict, bytes)] of a climb."""
    *_, report = climb(MACHINE, opener, transport="any", runs=2)
    assert isinstance(report, Report)
    return [(result.step.name, result.verdict, digests(result.facts)) for result in report.results]


def digests(facts):
    """Every sha256 in a step's facts, in order, wherever it is."""
    found = []
    for name, fact in facts.items():
        found += [fact] if name == "sha256" else digests(fact) if isinstance(fact, dict) else []
    return found


@pytest.fixture(scope="module")
def expected():
    return climbed(lambda: ModelTransport(System(MACHINE)))


@pytest.mark.parametrize("kind", ["socket", "jtag", "xdma", "rebased", "replay"])
def test_the_ladder_over(kind, tmp_path, expected):
    assert {verdict for _, verdict, _ in expected} == {Verdict.PASSED} and sum(
        map(len, (row[2] for row in expected))
    ) >= 6
    with ExitStack() as stack:
        assert climbed(lambda: opened(kind, tmp_path, stack, ModelTransport(System(MACHINE)))) == expected
    if kind == "replay":
        assert climbed(lambda: Replay(tmp_path / "session.jsonl", MACHINE)) == expected
