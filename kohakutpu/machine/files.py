"""Machine files: YAML in, YAML out, and finding a machine by name. The format is described in `docs/machines.md`."""

from __future__ import annotations

import difflib
from collections import Counter
from pathlib import Path

from kohakutpu import errata

from . import text_map
from .description import (
    Agent,
    ClusterUnit,
    Dram,
    Machine,
    MachineError,
    MemoryPort,
    VectorUnit,
    check_parameter,
    nearest_port,
    parameters,
)
from .strict_yaml import Document, Node
from .text_map import Placement

MACHINES = Path(__file__).resolve().parents[2] / "machines"

# what stands on a site: the section of its parameters, its dataclass
_SITES = {
    "memory port": ("port", MemoryPort),
    "cluster": ("cluster", ClusterUnit),
    "vector core": ("vector", VectorUnit),
}
_LISTS = {"ports": "memory port", "clusters": "cluster", "vectors": "vector core", "spare": "spare port"}
_MACHINE_SECTIONS = {"router": ("fifo_depth",), "orchestrator": ("staging_flits", "tx_depth", "rx_depth")}
_SECTIONS: dict[str, dict[str, dict]] = {
    **{section: {name: parameters(Machine)[name] for name in names} for section, names in _MACHINE_SECTIONS.items()},
    "memory": parameters(Dram),
    **{section: parameters(kind) for section, kind in _SITES.values()},
}
_KEYS = ("name", "map", "place", *_SECTIONS, "overrides", "errata", "compile_only")
_OVERRIDE_KEYS = ("at", "bind", *dict.fromkeys(name for _, kind in _SITES.values() for name in parameters(kind)))


def load(name_or_path: str | Path) -> Machine:
    """The machine of a bare name in `machines/`, of a YAML file, or of a text map (`.map`).

    Raises MachineError naming file, line and column, or the closest machine when none has that name.
    """
    given = str(name_or_path)
    path = Path(given)
    if path.name == given and path.suffix not in (".yaml", ".yml", ".map"):
        path = MACHINES / f"{given}.yaml"
        if not path.is_file():
            known = list_machines()
            near = difflib.get_close_matches(given, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            there = ", ".join(known) or "none"
            raise MachineError(f"no machine is called {given!r} in {MACHINES}: there are {there}{hint}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MachineError(f"cannot read machine file {given}: {error.strerror}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MachineError("not UTF-8 text", where=f"{path}:{line}:1") from error
    if path.suffix == ".map":
        return from_picture(text, name=path.stem, source=str(path))
    return from_yaml(text, source=str(path))


def list_machines() -> list[str]:
    """The names that `load` knows, sorted."""
    return sorted(path.stem for path in MACHINES.glob("*.yaml"))


def from_picture(text: str, *, name: str, source: str = "<picture>") -> Machine:
    """A machine with every parameter at its default from a text map. Raises MachineError naming line and column."""
    placement = text_map.parse(text, source=source)
    try:
        return _machine(name, placement, {}, {}, {})
    except MachineError as error:
        keys = (key for key in error.subject if key[0] == "site")
        mark = next((":{}:{}".format(*placement.marks[key[2]]) for key in keys), "")
        raise MachineError(error.message, where=f"{source}{mark}") from None


def from_yaml(text: str, *, source: str = "<yaml>") -> Machine:
    """A machine from YAML text. Raises MachineError that begins with `source:line:column`."""
    return _Reader(Document(text, source)).machine()


class _Reader:
    """One pass over a document; remembers where each statement stands, for the rules that need the whole machine."""

    def __init__(self, document: Document):
        self.document = document
        self.marks: dict[object, str] = {}  # key of MachineError.subject -> file:line:column

    def machine(self) -> Machine:
        doc = self.document
        top = doc.mapping(doc.root, _KEYS, "a machine")
        if "name" not in top:
            doc.refuse(doc.root, "no name; 'name: ...' is expected")
        name = doc.word(top["name"], "name")
        self.marks["name"] = doc.where(top["name"])
        placement = self._placement(top)
        sections = {section: self._section(top[section], section) for section in _SECTIONS if section in top}
        overrides = self._overrides(top["overrides"], placement) if "overrides" in top else {}
        general: dict[str, object] = {}
        if "errata" in top:
            general["errata"] = self._errata(top["errata"])
        if "compile_only" in top:
            general["compile_only"] = doc.boolean(top["compile_only"], "compile_only")
        try:
            return _machine(name, placement, sections, overrides, general)
        except MachineError as error:
            where = next((self.marks[key] for key in error.subject if key in self.marks), doc.where(doc.root))
            raise MachineError(error.message, where=where, subject=error.subject) from None

    def _placement(self, top: dict[str, Node]) -> Placement:
        doc = self.document
        if "map" in top and "place" in top:
            doc.refuse(top["place"], "map and place both say where units stand; one of them is expected")
        if "map" not in top and "place" not in top:
            doc.refuse(doc.root, "no map and no place; one of them says where units stand")
        if "place" in top:
            return self._listed(top["place"])
        text, first, indent = doc.block(top["map"], "map")
        placement = text_map.parse(text, source=doc.source, first_line=first, indent=indent)
        for what, x, y in placement.sites:
            self.marks["site", what, (x, y)] = doc.at(*placement.marks[x, y])
        return placement

    def _listed(self, node: Node) -> Placement:
        doc = self.document
        place = doc.mapping(node, ("grid", *_LISTS, "agent"), "place")
        if "grid" not in place:
            doc.refuse(node, "no grid in place; 'grid: [routers wide, routers tall]' is expected")
        placement = Placement(*doc.pair(place["grid"], "grid"), [])
        self.marks["grid"] = doc.where(place["grid"])
        self.marks["ports"] = doc.where(place.get("ports", node))
        self.marks["units"] = doc.where(node)
        lists = {what: doc.sequence(place[key], key) for key, what in _LISTS.items() if key in place}
        stated = [(what, item) for what, items in lists.items() for item in items]
        if "agent" in place:
            stated.append(("agent", place["agent"]))
        for what, item in stated:
            xy = doc.pair(item, f"a {what}'s place")
            self.marks["site", what, xy] = doc.where(item)  # of two statements about one place, the later is to blame
            placement.sites.append((what, *xy))
        placement.sites.sort(key=lambda site: (site[2], site[1]))
        return placement

    def _section(self, node: Node, section: str) -> dict[str, int]:
        records = _SECTIONS[section]
        found = self.document.mapping(node, records, section)
        return {name: self._value(item, records[name], (section, name)) for name, item in found.items()}

    def _value(self, node: Node, record: dict, key: tuple) -> int:
        doc, name = self.document, key[-1]
        value = doc.size(node, name) if record["unit"] > 1 else doc.integer(node, name)
        wrong = check_parameter(value, record)
        if wrong:
            doc.refuse(node, f"{name} = {value}; {wrong}")
        self.marks[key] = doc.where(node)
        return value

    def _overrides(self, node: Node, placement: Placement) -> dict[tuple[int, int], dict[str, int]]:
        doc = self.document
        standing = {(x, y): what for what, x, y in placement.sites if what in _SITES}
        ports = placement.of("memory port")
        overrides: dict[tuple[int, int], dict[str, int]] = {}
        for item in doc.sequence(node, "overrides"):
            found = doc.mapping(item, _OVERRIDE_KEYS, "an override")
            if "at" not in found:
                doc.refuse(item, "no 'at: [x, y]' in this override")
            at_node = found.pop("at")
            xy = doc.pair(at_node, "at")
            if xy not in standing:
                doc.refuse(at_node, f"no unit and no memory port at {xy}; they are at {sorted(standing)}")
            if xy in overrides:
                doc.refuse(at_node, f"a second override for {xy}")
            if not found:
                doc.refuse(item, f"an override for {xy} that says nothing")
            what = standing[xy]
            records = parameters(_SITES[what][1])
            overrides[xy] = values = {}
            for name, value in found.items():
                if name == "bind" and what != "memory port":
                    at = doc.pair(value, "bind")
                    if at not in ports:
                        doc.refuse(value, f"no memory port at {at}; they are at {ports}")
                    values["port"] = ports.index(at)
                elif name in records:
                    values[name] = self._value(value, records[name], ("override", xy, name))
                else:
                    legal = [*records, *(["bind"] if what != "memory port" else [])]
                    doc.refuse(value, f"a {what} has no {name}; it has {', '.join(legal)}")
        return overrides

    def _errata(self, node: Node) -> frozenset[str]:
        doc = self.document
        listed = doc.is_sequence(node)
        items = doc.sequence(node, "errata") if listed else [node]
        identifiers: list[str] = []
        for item in items:
            identifier = doc.word(item, "an erratum")
            if listed and identifier == "published":
                doc.refuse(item, "published stands alone: 'errata: published', or a list of identifiers")
            if identifier in identifiers:
                doc.refuse(item, f"erratum {identifier} a second time")
            try:
                errata.parse(identifier)
            except errata.UnknownErratum as error:
                doc.refuse(item, str(error))
            identifiers.append(identifier)
        return errata.parse(identifiers if listed else identifiers[0])


def _machine(name: str, placement: Placement, sections: dict, overrides: dict, general: dict) -> Machine:
    """Put a placement and parameters together; a unit is bound to the nearest port unless overridden."""
    ports = placement.of("memory port")
    if not ports:
        raise MachineError("no memory port: a machine needs 1 to 4", subject=("ports",))
    own = placement.of("agent")

    def made(what: str) -> tuple:
        section, kind = _SITES[what]
        sites = []
        for xy in placement.of(what):
            values = sections.get(section, {}) | overrides.get(xy, {})
            if what != "memory port":
                values.setdefault("port", nearest_port(placement.nx, placement.ny, ports, *xy))
            sites.append(kind(*xy, **values))
        return tuple(sites)

    return Machine(
        name=name,
        nx=placement.nx,
        ny=placement.ny,
        agent=Agent(*own[0], own_endpoint=True) if own else Agent(*ports[0]),
        ports=made("memory port"),
        clusters=made("cluster"),
        vectors=made("vector core"),
        spare=tuple(placement.of("spare port")),
        memory=Dram(**sections.get("memory", {})),
        **sections.get("router", {}),
        **sections.get("orchestrator", {}),
        **general,
    )


def to_yaml(machine: Machine) -> str:
    """YAML text that `from_yaml` turns into an equal machine; states only what differs from the defaults."""
    lines = [f'name: "{machine.name}"', *_where(machine)]
    for section, names in _MACHINE_SECTIONS.items():
        lines += _block(section, {name: getattr(machine, name) for name in names})
    lines += _block("memory", {name: getattr(machine.memory, name) for name in _SECTIONS["memory"]})
    overrides: dict[tuple[int, int], list[str]] = {}
    for section, sites in (("port", machine.ports), ("cluster", machine.clusters), ("vector", machine.vectors)):
        usual = {}
        for name in _SECTIONS[section] if sites else ():
            usual[name] = Counter(getattr(site, name) for site in sites).most_common(1)[0][0]
            for site in sites:
                if getattr(site, name) != usual[name]:
                    overrides.setdefault(site.xy, []).append(f"{name}: {getattr(site, name)}")
        lines += _block(section, usual)
    for unit in machine.units:
        if unit.port != machine.nearest_port(*unit.xy):
            overrides.setdefault(unit.xy, []).append(f"bind: {list(machine.port_of(unit).xy)}")
    if overrides:
        lines.append("overrides:")
        lines += [f"  - {{at: {list(xy)}, {', '.join(values)}}}" for xy, values in overrides.items()]
    if machine.errata == errata.PUBLISHED:
        lines.append("errata: published")
    elif machine.errata:
        lines.append(f"errata: [{', '.join(sorted(machine.errata))}]")
    if machine.compile_only:
        lines.append("compile_only: true")
    return "\n".join(lines) + "\n"


def _where(machine: Machine) -> list[str]:
    """The map, or the lists of a compile-only machine that no map can show."""
    try:
        return ["map: |", *(f"  {row}" for row in text_map.draw(machine).splitlines())]
    except MachineError:
        lines = ["place:", f"  grid: [{machine.nx}, {machine.ny}]"]
        for key, what in _LISTS.items():
            places = [list(xy) for kind, xy in machine.placed if kind == what]
            lines += [f"  {key}: {places}"] if places else []
        return lines + ([f"  agent: {list(machine.agent.xy)}"] if machine.agent.own_endpoint else [])


def _block(section: str, values: dict[str, int]) -> list[str]:
    """A section with the values that are not at their defaults."""
    records = _SECTIONS[section]
    said = {name: value for name, value in values.items() if value != records[name]["default"]}
    text = {name: _bytes(value) if records[name]["unit"] > 1 else str(value) for name, value in said.items()}
    return [f"{section}:", *(f"  {name}: {value}" for name, value in text.items())] if said else []


def _bytes(size: int) -> str:
    for name, unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return str(size)
