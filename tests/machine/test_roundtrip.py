"""Properties over generated machines: YAML and the text map give back what they were made from."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kohakutpu import errata
from kohakutpu.machine import (
    Agent,
    ClusterUnit,
    Dram,
    Machine,
    MachineError,
    MemoryPort,
    VectorUnit,
    from_picture,
    from_yaml,
    nearest_port,
    picture,
    to_yaml,
)
from kohakutpu.machine.description import parameters

ERRATA = st.frozensets(st.sampled_from(sorted(errata.REGISTRY))) | st.just(errata.PUBLISHED)
ROWS = st.lists(st.sampled_from(["xxx", "...", "nul", "mag", "mat", "vec", "agt", "mgr"]), max_size=5)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,9}", fullmatch=True) | st.sampled_from(["on", "010", "1e5"])


def _values(draw, kind: type) -> dict[str, int]:
    """Some parameters of a kind at legal values, the rest at their defaults."""
    values = {}
    for name, record in parameters(kind).items():
        if draw(st.integers(0, 3)) == 0:
            low, high, unit = record["low"], record["high"], record["unit"]
            if record["power_of_two"]:
                values[name] = 1 << draw(st.integers(low.bit_length() - 1, high.bit_length() - 1))
            else:
                values[name] = draw(st.integers(-(-low // unit), high // unit)) * unit
    if "write_slots" in values:
        values["write_slots"] = max(values["write_slots"], 40)
    return values


@st.composite
def machines(draw, plain: bool = False) -> Machine:
    """A legal machine; with `plain`, one with every parameter and binding at its default."""
    nx, ny = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    local = [(x, y) for y in range(1, ny + 1) for x in range(1, nx + 1)]
    edge = [(x, y) for x in range(1, nx + 1) for y in (0, ny + 1)]
    edge += [(x, y) for y in range(1, ny + 1) for x in (0, nx + 1)]
    ports = draw(st.lists(st.sampled_from(edge), min_size=1, max_size=4, unique=True))
    free = [xy for xy in local + edge if xy not in ports]
    places = draw(st.lists(st.sampled_from(free), min_size=1, max_size=12, unique=True))
    kinds = draw(st.lists(st.sampled_from(["cluster", "vector", "spare"]), min_size=len(places), max_size=len(places)))
    kinds[0] = draw(st.sampled_from(["cluster", "vector"]))
    free = [xy for xy in free if xy not in places]
    own = draw(st.none() | st.sampled_from(free)) if free else None

    def scan(xys):
        return sorted(xys, key=lambda xy: (xy[1], xy[0]))

    ports = scan(ports)
    usual = {kind: {} if plain else _values(draw, kind) for kind in (MemoryPort, ClusterUnit, VectorUnit)}

    def made(kind, xys):
        sites = []
        for xy in scan(xys):
            values = dict(usual[kind])
            if kind is not MemoryPort:
                values["port"] = nearest_port(nx, ny, ports, *xy)
            if not plain and draw(st.integers(0, 3)) == 0:
                values |= _values(draw, kind)
                if kind is not MemoryPort:
                    values["port"] = draw(st.integers(0, len(ports) - 1))
            sites.append(kind(*xy, **values))
        return tuple(sites)

    def of(kind):
        return [xy for xy, k in zip(places, kinds, strict=True) if k == kind]

    return Machine(
        name=draw(NAMES),
        nx=nx,
        ny=ny,
        agent=Agent(*own, own_endpoint=True) if own else Agent(*ports[0]),
        ports=made(MemoryPort, ports),
        clusters=made(ClusterUnit, of("cluster")),
        vectors=made(VectorUnit, of("vector")),
        spare=tuple(scan(of("spare"))),
        memory=Dram() if plain else Dram(**_values(draw, Dram)),
        errata=frozenset() if plain else draw(ERRATA),
        compile_only=False if plain else draw(st.booleans()),
        **({} if plain else _values(draw, Machine)),
    )


@settings(deadline=None)
@given(machines())
def test_yaml_round_trip(machine):
    text = to_yaml(machine)
    again = from_yaml(text)
    assert again == machine
    assert to_yaml(again) == text


@settings(deadline=None)
@given(machines(plain=True))
def test_map_round_trip(machine):
    text = picture(machine)
    again = from_picture(text, name=machine.name)
    assert again == machine
    assert picture(again) == text


@settings(deadline=None)
@given(machines(plain=True), st.data())
def test_a_compile_only_machine_with_impossible_places_round_trips(machine, data):
    unit = machine.units[0]
    shared = replace(machine, agent=Agent(*unit.xy, own_endpoint=True), compile_only=True)
    corner = (data.draw(st.sampled_from([0, machine.nx + 1])), data.draw(st.sampled_from([0, machine.ny + 1])))
    odd = replace(machine, spare=(), agent=Agent(*corner, own_endpoint=True), compile_only=True)
    for impossible in (shared, odd):
        assert from_yaml(to_yaml(impossible)) == impossible


@settings(deadline=None, max_examples=300)
@given(st.lists(ROWS, max_size=5))
def test_any_rows_of_tokens_are_a_machine_or_a_named_refusal(rows):
    text = "".join(" ".join(row) + "\n" for row in rows)
    try:
        machine = from_picture(text, name="m", source="any.map")
    except MachineError as error:
        assert str(error).startswith("any.map:")
    else:
        shown = [row for row in rows if row]
        assert picture(machine).split("\n")[:-1] == [" ".join(row).replace("...", "xxx") for row in shown]


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="nameapxvctgrid: |[]{}#'\"\n\t0123456789-&*!<", max_size=120))
def test_any_text_is_a_machine_or_a_named_refusal(text):
    try:
        from_yaml(text, source="any.yaml")
    except MachineError as error:
        assert str(error).startswith("any.yaml:")


def test_yaml_states_only_what_is_not_default():
    machine = from_picture("xxx vec xxx\nmag mat xxx\nxxx xxx xxx\n", name="small")
    drawn = 'name: "small"\nmap: |\n  xxx vec xxx\n  mag mat xxx\n  xxx xxx xxx\n'
    assert to_yaml(machine) == drawn
    tuned = replace(machine, memory=Dram(bytes=3 << 20), errata=errata.PUBLISHED)
    assert to_yaml(tuned) == drawn + "memory:\n  bytes: 3 MiB\nerrata: published\n"
