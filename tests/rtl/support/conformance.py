"""What any endpoint must do, as one call: `await conform(dut, Profile(...))` on a `LinkTop(Checked(endpoint))`.

The passive rules are counted in hardware beside it (`sim.port_checker`); this drives the endpoint into the corners:
unknown types, backpressure in three phases, a wedged unit, capabilities against what is really there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import (
    CU_CAPS,
    CU_CTRL_REPLY,
    CU_CTRL_REQUEST,
    CU_DATA,
    CU_SIGNAL,
    CU_STATUS,
    SIGNAL_ON_COMPLETE,
    ControlIndex,
    SignalCode,
)

from .links import Links, stutter

COMPLETIONS = (SignalCode.INST_COMPLETE, SignalCode.BATCH_COMPLETE, SignalCode.FAULT)
DEAF = (FlitType.MEM_WR_ACK, FlitType.CU_SIGNAL, *range(9, 16))  # types that an endpoint takes and forgets
MOST_BUFFERS = 8


@dataclass(frozen=True)
class Profile:
    """One endpoint: its packed `node`, whoever controls it (`host`), and what makes it work.

    `quick(txn, last)` is an instruction that completes without help, `wedge(txn)` one that does not. `unit_type` and
    `version` are what CU_CAPS must say. `burst` are the data flits of the smallest burst that a buffer takes. `bound`
    is how many cycles an instruction or a full queue may need. `probe_types` are the flit types that `busy` must not
    tell apart, `uncounted` buffers that take bursts and are not in CU_CAPS. `setup` are instructions that go first,
    such as the programs that `quick` and `wedge` run.
    """

    node: int
    host: int
    unit_type: int
    version: int
    quick: Callable[[int, int], Flit]
    wedge: Callable[[int], Flit]
    burst: int = 1
    bound: int = 2000
    probe_types: Sequence[int] = range(16)
    uncounted: tuple[int, ...] = ()
    setup: Sequence[Flit] = ()


class Endpoint:
    """The endpoint as its controller sees it."""

    def __init__(self, links: Links, profile: Profile):
        self.links = links
        self.profile = profile
        self.source = links.sources["in_link"]
        self.sink = links.sinks["out_link"]

    def arrived(self, kind: int) -> list[Flit]:
        return [flit for _, flit in self.sink.received if flit.type == kind]

    def completions(self) -> list[Flit]:
        return [f for f in self.arrived(FlitType.CU_SIGNAL) if CU_SIGNAL.get(f.payload, "code") in COMPLETIONS]

    async def taken(self, what: str) -> None:
        """Wait until everything sent was accepted."""
        await self.links.until(
            lambda: self.source.done, self.profile.bound, f"the endpoint is stuck: the acceptance of {what}"
        )

    async def prepared(self) -> None:
        """Send `setup`; what arrives because of it is forgotten."""
        self.source.send(*self.profile.setup)
        await self.completed(len(self.profile.setup), "of the setup")
        self.sink.received.clear()
        self.source.sent.clear()

    async def completed(self, count: int, what: str) -> None:
        await self.links.until(
            lambda: len(self.completions()) >= count, self.profile.bound, f"{count} completions {what}"
        )

    async def ask(self, index: int, txn: int, what: str) -> int:
        """The value behind a CU_CTRL index."""
        p = self.profile
        before = len(self.arrived(FlitType.CU_CTRL))
        payload = CU_CTRL_REQUEST.encode(index=index)
        self.source.send(Flit(p.node, p.host, FlitType.CU_CTRL, txn, 1, 0, payload))
        replies = lambda: self.arrived(FlitType.CU_CTRL)[before:]  # noqa: E731
        await self.links.until(replies, p.bound, f"a CU_CTRL answer {what}")
        reply = replies()[0]
        fields = CU_CTRL_REPLY.decode(reply.payload)
        assert (reply.dst, reply.src, reply.txn, reply.last) == (p.host, p.node, txn, 1), (
            f"the answer's header is {reply}"
        )
        assert (fields["op"], fields["index"]) == (2, index), f"the answer {what} is {fields}"
        return fields["value"]


async def conform(dut, profile: Profile, *, prepare: Callable[[], None] = lambda: None) -> None:
    """Every check on a fresh reset each; AssertionError names what the endpoint does wrong.

    `prepare` sets the endpoint's other inputs, before the clock starts.
    """
    prepare()
    links = await Links.start(dut, probing=0.3, probe_types=profile.probe_types)
    endpoint = Endpoint(links, profile)
    for check in (_unknown_types, _one_completion_each, _phases, _capabilities, _wedged, _buffers):
        links.sinks["out_link"].busy = None
        await links.reset()
        await endpoint.prepared()
        wedges = await check(endpoint)
        await links.finish(owing=bool(wedges))


async def _unknown_types(endpoint: Endpoint) -> None:
    """What it does not know it takes and forgets, as much of it as there is."""
    p = endpoint.profile
    chance = random.Random(1)
    for kind in DEAF:
        endpoint.source.send(*[Flit(p.node, p.host, kind, i, 1, 0, chance.getrandbits(256)) for i in range(100)])
        await endpoint.taken(f"100 flits of type {int(kind):#x}")
    endpoint.source.send(p.quick(1, 0))
    await endpoint.completed(1, "after unknown types")


async def _one_completion_each(endpoint: Endpoint) -> None:
    p = endpoint.profile
    endpoint.sink.busy = stutter(3, 0.5)
    endpoint.source.send(*[p.quick(txn, txn % 5 == 4) for txn in range(40)])
    await endpoint.completed(40, "of 40 instructions through a stuttering link")
    await endpoint.links.step(100)
    assert [flit.txn for flit in endpoint.completions()] == list(range(40)), (
        "completions are not one to one and in order"
    )


async def _phases(endpoint: Endpoint) -> None:
    """The link held, then open for single cycles, then free."""
    p = endpoint.profile
    gate: set[int] = set()
    endpoint.sink.busy = lambda cycle: cycle not in gate
    endpoint.source.send(*[p.quick(txn, 0) for txn in range(8)])
    await endpoint.links.step(300)
    assert not endpoint.sink.received, "a flit escaped a held link"
    for count in range(1, 4):
        gate.add(endpoint.links.cycle + 2)
        await endpoint.links.step(20)
        assert len(endpoint.sink.received) == count, "one flit leaves for each cycle in which the link is open"
    endpoint.sink.busy = None
    await endpoint.completed(8, "once the link was free")


async def _capabilities(endpoint: Endpoint) -> None:
    p = endpoint.profile
    caps = CU_CAPS.decode(await endpoint.ask(ControlIndex.CAPS, 9, "of an idle endpoint"))
    assert (caps["type"], caps["version"]) == (p.unit_type, p.version), f"CU_CAPS says {caps}"
    status = CU_STATUS.decode(await endpoint.ask(ControlIndex.STATUS, 10, "of an idle endpoint"))
    assert status == {"busy": 0, "error": 0, "inst_space": caps["inst_depth"]}, (
        f"an idle endpoint's CU_STATUS says {status}"
    )
    for index in (4, 0xE0, 0xFF):
        assert await endpoint.ask(index, 11, f"at index {index:#x}") == 0, f"index {index:#x} does not read 0"


async def _wedged(endpoint: Endpoint) -> bool:
    """CU_CTRL is answered, and the instruction FIFO holds as many as CU_CAPS says."""
    p = endpoint.profile
    depth = CU_CAPS.get(await endpoint.ask(ControlIndex.CAPS, 1, "before it is wedged"), "inst_depth")
    endpoint.source.send(p.wedge(2))
    await endpoint.links.step(50)
    status = CU_STATUS.decode(await endpoint.ask(ControlIndex.STATUS, 3, "of a wedged endpoint"))
    assert status == {"busy": 1, "error": 0, "inst_space": depth}, f"a wedged endpoint's CU_STATUS says {status}"
    before = len(endpoint.source.sent)
    endpoint.source.send(*[p.quick(txn & 255, 0) for txn in range(depth + 20)])
    await endpoint.links.step(depth + 100)
    measured = len(endpoint.source.sent) - before
    assert measured == depth, f"CU_CAPS says {depth} instructions, {measured} fit behind the one in flight"
    return True


async def _buffers(endpoint: Endpoint) -> None:
    """A burst for a buffer that does not exist is acknowledged, and the next retirement is a FAULT."""
    p = endpoint.profile
    caps = CU_CAPS.get(await endpoint.ask(ControlIndex.CAPS, 1, "before buffers are tried"), "buffers")
    real = []
    for buffer in range(MOST_BUFFERS):
        descriptor = CU_DATA.encode(buf=buffer, offset=0, len=p.burst - 1, flags=SIGNAL_ON_COMPLETE)
        flits = [Flit(p.node, p.host, FlitType.CU_DATA, 0, 0, 0, descriptor)]
        flits += [Flit(p.node, p.host, FlitType.CU_DATA, 0, int(i == p.burst - 1), 0, 0) for i in range(p.burst)]
        signals = len(endpoint.arrived(FlitType.CU_SIGNAL))
        done = len(endpoint.completions())
        endpoint.source.send(*flits)
        await endpoint.links.until(
            lambda: len(endpoint.arrived(FlitType.CU_SIGNAL)) > signals,
            p.bound,
            f"an acknowledgement of a burst to buffer {buffer}",
        )
        ack = CU_SIGNAL.decode(endpoint.arrived(FlitType.CU_SIGNAL)[-1].payload)
        assert ack == {"code": SignalCode.DATA_RECEIVED, "arg": buffer}, (
            f"a burst to buffer {buffer} was answered with {ack}"
        )
        endpoint.source.send(p.quick(buffer, 0))
        await endpoint.completed(done + 1, f"after a burst to buffer {buffer}")
        if CU_SIGNAL.get(endpoint.completions()[-1].payload, "code") != SignalCode.FAULT:
            real.append(buffer)
    assert real == [*range(caps), *p.uncounted], f"CU_CAPS says {caps} buffers, bursts are taken for buffers {real}"
