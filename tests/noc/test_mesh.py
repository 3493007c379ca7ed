"""The mesh as a whole: delivery, order, hold until taken, exact latencies, and planted faults that must show."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.noc import router as router_module
from kohakutpu.noc.engine import Engine
from kohakutpu.noc.mesh import OPPOSITE, STEP, Mesh
from kohakutpu.noc.router import NocError, Port, RouteTable

GRIDS = [(2, 2), (3, 3), (4, 4)]


def all_to_all(bench):
    sent = [bench.send(a, b) for a in bench.probes for b in bench.probes if a != b]
    return sent


def flood(bench, rounds=40):
    """Everybody to the site across the middle, at once."""
    order = sorted(bench.probes)
    return [bench.send(a, b) for _ in range(rounds) for a, b in zip(order, reversed(order)) if a != b]


def scatter(bench, count=240, seed=0x12345678):
    chance = random.Random(seed)
    places = sorted(bench.probes)
    sent = []
    for _ in range(count):
        a, b = chance.sample(places, 2)
        sent.append(bench.send(a, b, at=chance.randrange(400)))
    return sent


@pytest.mark.parametrize("share", [0, 0.5, 0.9], ids=["free", "half-busy", "mostly-busy"])
@pytest.mark.parametrize("traffic", [all_to_all, flood, scatter])
@pytest.mark.parametrize("nx, ny", GRIDS)
def test_every_flit_arrives_once_at_its_node_and_in_order(make_bench, random_busy, nx, ny, traffic, share):
    bench = make_bench(nx, ny, busy=random_busy(nx, share) if share else lambda at: None)
    sent = traffic(bench)
    assert bench.run(len(sent), budget=100_000), "the watchdog expired"
    bench.check_delivery(sent)


@pytest.mark.parametrize("nx, ny", [(1, 1), (1, 3), (3, 1), (2, 3)])
def test_small_and_flat_grids(make_bench, nx, ny):
    bench = make_bench(nx, ny, depth=2)
    sent = all_to_all(bench)
    assert bench.run(len(sent))
    bench.check_delivery(sent)


def distance(bench, a, b):
    """Routers between two sites."""
    (ax, ay), (bx, by) = (bench.machine.clamp(at & 15, at >> 4) for at in (a, b))
    return abs(ax - bx) + abs(ay - by) + 1


@pytest.mark.parametrize("nx, ny", [(3, 3), (4, 2)])
def test_a_lone_flit_takes_three_cycles_a_router(make_bench, nx, ny):
    probes = make_bench(nx, ny).probes
    for a in probes:
        for b in list(probes)[:: 3]:
            if a == b:
                continue
            bench = make_bench(nx, ny)
            bench.send(a, b)
            assert bench.run(1)
            injected = next(cycle for cycle, name, _ in bench.transfers if name == bench.probes[a].out.name)
            arrived = bench.probes[b].received[0][0]
            assert arrived - injected == 3 * distance(bench, a, b)


def test_a_stream_moves_one_flit_a_cycle(make_bench):
    bench = make_bench(4, 4, depth=2)
    a, b = node(0, 1), node(5, 4)
    for _ in range(100):
        bench.send(a, b)
    assert bench.run(100)
    cycles = [cycle for cycle, _ in bench.probes[b].received]
    assert cycles == list(range(cycles[0], cycles[0] + 100))


def test_two_senders_share_a_link_evenly(make_bench):
    """The pointer counts cycles modulo 5, so the exact winners are known."""
    bench = make_bench(2, 1)
    target = node(2, 0)
    for _ in range(50):
        bench.send(node(2, 1), target)
        bench.send(node(3, 1), target)
    assert bench.run(100)
    arrived = bench.probes[target].received
    assert [cycle for cycle, _ in arrived] == list(range(arrived[0][0], arrived[0][0] + 100))
    for cycle, flit in arrived[:60]:
        granted = cycle - 1
        # requesters EAST = 1 and LOCAL = 4: the pointer at 0, 1 picks EAST, at 2, 3, 4 LOCAL
        assert flit.src == (node(3, 1) if granted % 5 in (0, 1) else node(2, 1)), f"grant of cycle {granted}"


def test_a_blocked_path_holds_what_its_registers_hold(make_bench):
    """FIFO, holding register and output register of each router, and the sender's own register."""
    depth = 4
    bench = make_bench(2, 1, depth=depth, busy=lambda at: (lambda cycle: True) if at == node(3, 1) else None)
    for _ in range(40):
        bench.send(node(0, 1), node(3, 1))
    bench.engine.advance(200)
    assert len(bench.probes[node(0, 1)].queue) == 40 - 2 * (depth + 2) - 1
    assert not bench.probes[node(3, 1)].received
    text = "\n".join(bench.mesh.describe())
    assert f"r21.west in: {depth + 1} flits held" in text and "r11.west in" in text


def test_an_empty_site_swallows_and_counts(make_grid, make_probe):
    engine = Engine()
    mesh = Mesh(engine, make_grid(2, 2))
    probe = make_probe(engine, node(1, 1))
    mesh.attach(probe, node(1, 1))
    for dst in (node(2, 0), node(2, 2), node(0, 0)):
        probe.send(Flit(dst, node(1, 1), FlitType.CU_SIGNAL, 0, 1, 0, 0))
    engine.advance(40)
    traffic = mesh.traffic()
    assert traffic.vanished == 3 and traffic.by_type == {FlitType.CU_SIGNAL: 3}
    # (0,0) is no site: dimension order takes it out of the west side of (1,1)
    sites = [line.split(":")[0] for line in mesh.describe()]
    assert sites == ["empty site (0,1)", "empty site (2,0)", "empty site (2,2)"]


def test_traffic_counts_senders_types_and_hops(make_bench):
    bench = make_bench(2, 2)
    bench.send(node(0, 1), node(3, 2), kind=FlitType.MEM_RD_RESP)
    bench.send(node(0, 1), node(1, 1), kind=FlitType.MEM_RD_RESP)
    bench.send(node(2, 2), node(0, 2), kind=FlitType.CU_SIGNAL)
    assert bench.run(3)
    traffic = bench.mesh.traffic()
    assert traffic.sent[node(0, 1)] == {FlitType.MEM_RD_RESP: 2}
    assert traffic.sent[node(2, 2)] == {FlitType.CU_SIGNAL: 1}
    assert traffic.hops == (3 + 1) + (1 + 1) + (2 + 1) == len(bench.transfers)


@pytest.mark.parametrize("place", [(0, 0), (3, 3), (4, 1), (9, 9)])
def test_an_endpoint_without_a_router_port_is_refused(make_grid, make_probe, place):
    engine = Engine()
    mesh = Mesh(engine, make_grid(2, 2))
    with pytest.raises(NocError, match="no router has a port there"):
        mesh.attach(make_probe(engine, node(*place)), node(*place))


def test_a_taken_site_is_refused(make_bench, make_probe):
    bench = make_bench(2, 2)
    with pytest.raises(NocError, match="already holds"):
        bench.mesh.attach(make_probe(bench.engine, node(1, 1)), node(1, 1))


# ---- skipping idle time must change nothing ----------------------------------------------------------

messages = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 60)), min_size=1, max_size=60)


@settings(max_examples=40, deadline=None)
@given(shape=st.sampled_from([(1, 1), (2, 2), (3, 2)]), depth=st.integers(2, 4), seed=st.integers(0, 99),
       share=st.sampled_from([0, 0.3, 0.8]), traffic=messages)  # fmt: skip
def test_skipping_gives_the_same_trace(make_bench, random_busy, shape, depth, seed, share, traffic):
    logs = []
    for skip in (True, False):
        busy = random_busy(seed, share) if share else lambda at: None
        bench = make_bench(*shape, depth=depth, skip=skip, busy=busy)
        places = sorted(bench.probes)
        for a, b, at in traffic:
            bench.send(places[a % len(places)], places[b % len(places)], at=at)
        assert bench.run(len(traffic), budget=50_000)
        logs.append((bench.engine.now, sorted(bench.transfers)))
    assert logs[0] == logs[1]


# ---- planted faults: the checks above must see them --------------------------------------------------


def test_a_wrong_clamp_is_seen(make_bench, monkeypatch):
    """A router that does not clamp columns sends traffic for the far edge out of the wrong row."""
    right = RouteTable._route

    def unclamped(x, y, x_hi, y_hi, dx, dy):
        return right(x, y, x_hi + 1, y_hi, dx, dy)

    monkeypatch.setattr(RouteTable, "_route", staticmethod(unclamped))
    bench = make_bench(2, 2)
    sent = all_to_all(bench)
    bench.run(len(sent), budget=5_000)
    with pytest.raises(AssertionError):
        bench.check_delivery(sent)


def test_a_dropped_tail_is_seen(make_bench):
    bench = make_bench(2, 2, faults=frozenset({"noc-lost-tail"}))
    sent = [bench.send(node(1, 1), node(0, 1), kind=FlitType.MEM_WR_DATA, last=i % 8 == 7) for i in range(16)]
    assert not bench.run(len(sent), budget=1_000), "the watchdog must expire"
    with pytest.raises(AssertionError):
        bench.check_delivery(sent)


def test_a_flipped_bit_is_seen(make_bench):
    bench = make_bench(2, 2, faults=frozenset({"noc-flipped-bit"}))
    sent = [bench.send(node(1, 1), node(0, 1), kind=FlitType.MEM_WR_DATA) for _ in range(4)]
    assert bench.run(len(sent))
    with pytest.raises(AssertionError):
        bench.check_delivery(sent)


def test_a_withdrawn_flit_is_seen(make_bench):
    """A router that replaces a refused flit by the next one breaks the hold rule and loses a flit."""
    bench = make_bench(2, 2, busy=lambda at: (lambda cycle: cycle % 7 < 5))
    sent = [bench.send(node(0, 1), node(2, 1)) for _ in range(20)]
    probe = bench.probes[node(2, 1)]
    assert bench.engine.run(lambda: probe.refused is not None, 100) and not probe.broken
    link = probe.in_link
    link.flit = link.flit._replace(payload=link.flit.payload + 1)
    bench.engine.advance(200)
    assert probe.broken
    with pytest.raises(AssertionError):
        bench.check_delivery(sent)


def test_a_masked_turn_is_named(make_bench, monkeypatch):
    """Routing rows before columns at one router asks for a turn that has no wires."""
    right = RouteTable._route

    def rows_first(x, y, x_hi, y_hi, dx, dy):
        cy = min(max(dy, 1), y_hi)
        if (x, y) == (2, 1) and cy != y:
            return Port.SOUTH if cy > y else Port.NORTH
        return right(x, y, x_hi, y_hi, dx, dy)

    monkeypatch.setattr(RouteTable, "_route", staticmethod(rows_first))
    bench = make_bench(3, 2)
    bench.send(node(2, 1), node(3, 2))
    with pytest.raises(NocError, match=r"r22: cycle \d+: a CU_DATA flit .* masked turn north to east"):
        bench.run(1)


def test_dimension_order_never_asks_for_a_masked_turn():
    """Every pair of sites on every grid up to 5x4, walked through the tables."""
    for nx in range(1, 6):
        for ny in range(1, 5):
            tables = {(x, y): RouteTable(x, y, nx, ny) for x in range(1, nx + 1) for y in range(1, ny + 1)}
            sites = [(x, y) for x in range(nx + 2) for y in range(ny + 2) if 1 <= x <= nx or 1 <= y <= ny]
            for start in sites:
                for dst in range(256):
                    walk(tables, nx, ny, start, dst, sites)


def walk(tables, nx, ny, start, dst, sites):
    x, y = min(max(start[0], 1), nx), min(max(start[1], 1), ny)
    entry = {(-1, 0): Port.WEST, (1, 0): Port.EAST, (0, -1): Port.NORTH, (0, 1): Port.SOUTH, (0, 0): Port.LOCAL}
    came = entry[start[0] - x, start[1] - y]
    for _ in range(nx + ny + 1):
        out = tables[x, y].port[dst]
        assert (came, out) not in tables[x, y].masked
        dx, dy = STEP[out]
        if out == Port.LOCAL or (x + dx, y + dy) not in tables:
            if (dst & 15, dst >> 4) in sites:
                assert (x + dx, y + dy) == (dst & 15, dst >> 4)
            return
        x, y = x + dx, y + dy
        came = OPPOSITE[out]
    raise AssertionError(f"a flit from {start} to {dst:#04x} never leaves the grid")


@pytest.mark.parametrize(
    "dst, port", [((0, 0), Port.WEST), ((3, 0), Port.EAST), ((0, 9), Port.SOUTH), ((15, 15), Port.SOUTH)]
)
def test_corners_leave_by_the_side_of_their_column(dst, port):
    """Columns before rows outward too: (0,0) leaves router (1,1) by the west, and reaches the endpoint at (0,1)."""
    at = (1 if dst[0] < 2 else 2, 1)
    table = router_module.RouteTable(*at, 2, 2)
    assert table.port[node(*dst)] == port
