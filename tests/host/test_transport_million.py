"""A million random accesses through every transport while the link is harmed: none lost, none done twice."""

import sys
import time
from pathlib import Path

import pytest

from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.transports.recording import Recorder, Replay
from kohakutpu.machine import load
from kohakutpu.model.system import System

sys.path.insert(0, str(Path(__file__).parent))
from chaos import Harm  # noqa: E402
from transport_traffic import Ledger, Traffic  # noqa: E402
from transport_world import harmed  # noqa: E402

pytestmark = pytest.mark.slow

MACHINE = load("mm_mesh")
ACCESSES = 1_000_000
HARM = Harm(short=0.01, delay=0.001, drop=0.0005)


def told(kind, traffic, start, harm=""):
    print(f"\n{kind}: {traffic.accesses:,} accesses, {traffic.words:,} words, {traffic.requests:,} requests, "
          f"0 lost or done twice, {time.monotonic() - start:.0f} s{harm}")  # fmt: skip


@pytest.mark.parametrize("kind", ["socket", "jtag", "xdma"])
def test_a_million_accesses_under_harm(kind, tmp_path, capsys):
    start = time.monotonic()
    with harmed(kind, MACHINE, tmp_path, HARM, seed=11) as world:
        traffic = Traffic(world.transport, MACHINE, seed=12, longest=16)
        traffic.run(ACCESSES)
        assert min(world.harm().values()) > 100, "hardly anything was harmed: this shows nothing"
        assert world.ledger.words == traffic.ledger.words
        assert world.ledger.digest.digest() == traffic.ledger.digest.digest()
        with capsys.disabled():
            told(kind, traffic, start, f"; {world.harm()}")


def test_a_million_accesses_on_the_models_and_replayed(tmp_path, capsys):
    start = time.monotonic()
    path = tmp_path / "session.jsonl.gz"
    with Recorder(Ledger(ModelTransport(System(MACHINE))), MACHINE, path, "model") as recorder:
        traffic = Traffic(recorder, MACHINE, seed=12, longest=16)
        traffic.run(ACCESSES)
        assert recorder.inner.digest.digest() == traffic.ledger.digest.digest()
    with capsys.disabled():
        told("model, recorded", traffic, start)
    start = time.monotonic()
    with Replay(path, MACHINE) as replay:
        again = Traffic(replay, MACHINE, seed=12, longest=16)
        again.run(ACCESSES)
        assert replay.finished() and again.ledger.digest.digest() == traffic.ledger.digest.digest()
    with capsys.disabled():
        told("replay", again, start)
