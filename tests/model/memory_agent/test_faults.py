"""Planted faults: each one is seen by the checks that the other tests make."""

import pytest

from kohakutpu.isa.flit import FlitType
from kohakutpu.model import faults as registry
from kohakutpu.model.memory_agent import FAULTS

FIRST_ANSWER = 4 + 20  # cycles from a request's transfer to that of its first word, at a latency of 20


def violations(bench, fault):
    """What a fixed mixture of traffic shows that it should not."""
    port = bench(faults=frozenset({fault} if fault else ()))
    memory = port.fill()
    requests = [port.read(0x100, txn=1, len=3), port.read(0x2000, txn=2, stream=1, count=3, quant=1)]
    expected = [flit for request in requests for flit in port.expect(request, memory)]
    data = [0x1111 * k for k in range(1, 9)]
    port.send(*requests, *port.write(0x8000, data, txn=7), *port.write(0x9000, data, txn=8))
    port.engine.advance(2000)
    got = [flit for _, flit in port.got]
    reads = [flit for flit in got if flit.type == FlitType.MEM_RD_RESP]
    found = set()
    for flit, wanted in zip(reads, expected, strict=True):
        found |= {name for name in flit._fields if getattr(flit, name) != getattr(wanted, name)}
    requested = next(cycle for cycle, flit in port.sent if flit.type == FlitType.MEM_RD_REQ)
    if port.got[0][0] != requested + FIRST_ANSWER:
        found.add("time")
    if [flit.txn for flit in got if flit.type == FlitType.MEM_WR_ACK] != [7, 8]:
        found.add("acknowledgements")
    image = b"".join(word.to_bytes(32, "little") for word in data)
    if any(port.memory.read(address, 256) != image for address in (0x8000, 0x9000)):
        found.add("memory")
    return found


def test_sound_hardware_shows_nothing(bench):
    assert violations(bench, None) == set()


@pytest.mark.parametrize(
    "fault, shows",
    [("memory-read-bit", "payload"), ("memory-last", "last"), ("memory-word-index", "rsvd"),
     ("memory-ack-lost", "acknowledgements"), ("memory-write-bit", "memory"), ("memory-write-lost", "memory"),
     ("memory-late", "time")],
)  # fmt: skip
def test_each_fault_is_seen_where_it_should_be(bench, fault, shows):
    assert violations(bench, fault) == {shows}


def test_every_fault_is_tried_and_registered():
    tried = {
        mark.args[1][k][0] for mark in test_each_fault_is_seen_where_it_should_be.pytestmark for k in range(len(FAULTS))
    }
    assert tried == FAULTS.keys() and FAULTS.items() <= registry.table().items()
