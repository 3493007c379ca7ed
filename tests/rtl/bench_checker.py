"""The port checker on endpoints that break one rule each, and on one that breaks none. RULE names what must be seen."""

from __future__ import annotations

import os

import cocotb

from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.signals import CU_CTRL_REQUEST, UnitType
from sim import port_rules
from support.conformance import Profile, conform
from support.links import Links, stutter

RULE = os.environ["RULE"]
UNIT, HOST, MEMORY = node(2, 1), node(1, 1), node(0, 1)


def order(txn=0, last=0, *, cycles=1, wait=0, beats=0, to_node=0):
    payload = cycles | wait << 17 | 77 << 32 | MEMORY << 64 | beats << 72 | to_node << 76
    return Flit(UNIT, HOST, FlitType.CU_INST, txn, last, 0, payload)


PROFILE = Profile(node=UNIT, host=HOST, unit_type=UnitType.TEMPLATE, version=4, quick=order,
                  wedge=lambda txn: order(txn, wait=1))  # fmt: skip


@cocotb.test()
async def counts_the_rule(dut):
    """A mixture of everything that an endpoint sends shows the broken rule."""
    links = await Links.start(dut)
    links.sinks["out_link"].busy = stutter(5, 0.4)
    source = links.sources["in_link"]
    for txn in range(60):
        source.send(
            order(txn, txn % 3 == 2, cycles=1 + txn % 4, beats=txn % 9, to_node=txn // 9 % 2), at=txn // 20 * 700
        )
        if txn % 6 == 0:
            source.send(Flit(UNIT, HOST, FlitType.CU_CTRL, txn, 1, 0, CU_CTRL_REQUEST.encode(index=txn % 4)))
    await links.step(2500)
    seen = port_rules.violations(int(dut.check__violations.value))
    if RULE == "none":
        await links.finish()
        assert links.probes > 50
    else:
        assert RULE in seen, f"{RULE} was not seen, but {seen}"
        assert RULE in links.broken()


@cocotb.test()
async def conforms(dut):
    """The active part, with the expected refusal as text in RULE when there is one."""
    try:
        await conform(dut, PROFILE)
    except AssertionError as error:
        if RULE == "none":
            raise
        assert RULE in str(error), f"expected {RULE!r}, but the endpoint was refused because {error}"
    else:
        assert RULE == "none", f"nothing was found; expected {RULE!r}"
