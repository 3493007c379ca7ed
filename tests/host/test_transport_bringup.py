"""The bring-up ladder over a card's transports, harmed on the way, and over a link that is lost."""

import sys
from pathlib import Path

import pytest

from kohakutpu.host.bringup import climb
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.transports.xdma import XdmaTransport
from kohakutpu.machine import load
from kohakutpu.model.system import System

sys.path.insert(0, str(Path(__file__).parent))
from chaos import Harm  # noqa: E402
from fake_xdma import Card, FakeFiles  # noqa: E402
from transport_world import harmed, jtag_to  # noqa: E402

MACHINE = load("mm_mesh")


def report_of(transport, opener, **options):
    *_, report = climb(MACHINE, opener, transport=transport, runs=2, **options)
    return report


@pytest.mark.parametrize("kind", ["socket", "jtag", "xdma"])
def test_the_ladder_passes_over_a_harmed_link(kind, tmp_path):
    with harmed(kind, MACHINE, tmp_path, Harm(short=0.02, delay=0.002, drop=0.002), idle=3) as world:
        report = report_of(kind, lambda: world.transport)
        assert int(report.status) == 0, report.summary
        assert sum(world.harm().values()) > 20


def test_a_link_that_is_not_to_be_trusted_is_the_first_steps_refusal():
    with jtag_to(ModelTransport(System(MACHINE)), skew=1) as connect:
        report = report_of("jtag", connect)
    assert int(report.status) == 2 and "answer for the read 1 before" in str(report.to_dict())


def test_a_link_that_is_lost_on_the_way_is_no_transport():
    files = FakeFiles(ModelTransport(System(MACHINE)), "/dev/x")

    def opener():
        transport = XdmaTransport("/dev/x", files=files)
        files.card = Card(dead=frozenset({"c2h_0"}))
        return transport

    report = report_of("xdma", opener)
    assert int(report.status) == 3 and "/dev/x_c2h_0 failed at 0x" in str(report.to_dict())
