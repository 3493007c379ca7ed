"""Machine files: YAML in, YAML out, and finding a machine by name. The format is described in `docs/machines.md`."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from pathlib import Path

from kohakutpu import errata as errata_registry

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

MACHINES = Path(__file__).resolve().parents[2] / "machines"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_SITES = {"port": MemoryPort, "cluster": ClusterUnit, "vector": VectorUnit}
_WHAT = {"port": "memory port", "cluster": "cluster", "vector": "vector core", "spare": "spare port", "agent": "agent"}
_LISTS = {"ports": "port", "clusters": "cluster", "vectors": "vector", "spare": "spare"}
_MACHINE_SECTIONS = {"router": ("fifo_depth",), "orchestrator": ("staging_flits", "tx_depth", "rx_depth")}
_KEYS = (
    "name", "map", "place", "router", "orchestrator", "memory", "port", "cluster", "vector", "overrides", "errata",
    "compile_only",
)  # fmt: skip


def load(name_or_path: str | Path) -> Machine:
    """The machine of a bare name in `machines/`, or of a YAML file.

    Raises MachineError naming file, line and column, or the closest machine when there is no such file.
    """
    given = str(name_or_path)
    path = Path(given)
    if path.suffix not in (".yaml", ".yml") and path.name == given:
        path = MACHINES / f"{given}.yaml"
        if not path.is_file():
            known = list_machines()
            near = difflib.get_close_matches(given, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise MachineError(f"no machine is called {given!r}; {hint}Machines are {', '.join(known)}")
    elif not path.is_file():
        raise MachineError(f"no machine file {given}")
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise MachineError("not UTF-8 text", where=f"{path}:{line}:1") from error
    return from_yaml(text, source=str(path))


def list_machines() -> list[str]:
    """Names that `load` knows, sorted."""
    return sorted(path.stem for path in MACHINES.glob("*.yaml"))


def from_picture(text: str, *, name: str, source: str = "<picture>") -> Machine:
    """A machine with every parameter at its default from a text picture. Raises MachineError naming the line."""
    placement = text_map.parse(text, source=source)
    return _machine(name, placement, {}, {}, {})


def from_yaml(text: str, *, source: str = "<yaml>") -> Machine:
    """A machine from YAML text. Raises MachineError that begins with `source:line:column`."""
    document = Document(text, source)
    return _Reader(document).machine()


class _Reader:
    """One pass over a document; remembers where each statement stands, for rules that need the whole machine."""

    def __init__(self, document: Document):
        self.document = document
        self.marks: dict[tuple, str] = {}

    def machine(self) -> Machine:
        doc = self.document
        top = doc.mapping(doc.root, _KEYS, "a machine")
        if "name" not in top:
            doc.refuse(doc.root, "no name; 'name: ...' is expected")
        name = doc.word(top["name"], "name")
        if not _NAME.fullmatch(name):
            doc.refuse(top["name"], f"name {name!r}; letters, digits and _ . + - are expected")
        placement = self._placement(top)
        sections = {key: self._section(top, key) for key in ("router", "orchestrator", "memory", *_SITES)}
        overrides = self._overrides(top, placement)
        general = {
            "errata": self._errata(top),
            "compile_only": doc.boolean(top["compile_only"], "compile_only") if "compile_only" in top else False,
        }
        try:
            return _machine(name, placement, sections, overrides, general)
        except MachineError as error:
            raise MachineError(error.message, where=self._locate(error.subject), subject=error.subject) from None

    # ---- where things stand -------------------------------------------------------------------------

    def _placement(self, top: dict[str, Node]) -> text_map.Placement:
        doc = self.document
        if "map" in top and "place" in top:
            doc.refuse(top["place"], "map and place both say where units stand; one of them is expected")
        if "map" not in top and "place" not in top:
            doc.refuse(doc.root, "no map and no place; one of them says where units stand")
        if "map" in top:
            text, first, indent = doc.block(top["map"], "map")
            placement = text_map.parse(text, source=doc.source, first_line=first, indent=indent)
            for kind, x, y in placement.sites:
                self.marks["site", _WHAT[kind], (x, y)] = doc.at(*placement.marks[x, y])
            for subject in ("grid", "ports", "units"):
                self.marks[(subject,)] = doc.where(top["map"])
            return placement
        place = doc.mapping(top["place"], ("grid", *_LISTS, "agent"), "place")
        if "grid" not in place:
            doc.refuse(top["place"], "no grid; 'grid: [routers wide, routers tall]' is expected")
        nx, ny = doc.coordinate(place["grid"], "grid")
        placement = text_map.Placement(nx, ny, [])
        for subject in ("ports", "units"):
            self.marks[(subject,)] = doc.where(place.get(subject, top["place"]))
        self.marks["grid",] = doc.where(place["grid"])
        entries: list[tuple[str, Node]] = []
        for key, kind in _LISTS.items():
            if key in place:
                entries += [(kind, node) for node in doc.sequence(place[key], key)]
        if "agent" in place:
            entries.append(("agent", place["agent"]))
        for kind, node in entries:
            xy = doc.coordinate(node, _WHAT[kind])
            # the later of two statements about a place is the one to blame
            self.marks["site", _WHAT[kind], xy] = doc.where(node)
            placement.sites.append((kind, *xy))
        placement.sites.sort(key=lambda site: (site[2], site[1]))
        return placement

    # ---- parameters -----------------------------------------------------------------------------------

    def _section(self, top: dict[str, Node], key: str) -> dict[str, int]:
        if key not in top:
            return {}
        records = _records(key)
        found = self.document.mapping(top[key], records, key)
        return {name: self._value(node, f"{key}.{name}", records[name], (key, name)) for name, node in found.items()}

    def _value(self, node: Node, what: str, record: dict, subject: tuple) -> int:
        doc = self.document
        value = doc.size(node, what) if what == "memory.bytes" else doc.integer(node, what)
        wrong = check_parameter(value, record)
        if wrong:
            doc.refuse(node, f"{what} = {value}; {wrong}")
        self.marks[subject] = doc.where(node)
        return value

    def _overrides(self, top: dict[str, Node], placement: text_map.Placement) -> dict[tuple[int, int], dict]:
        doc = self.document
        kinds = {(x, y): kind for kind, x, y in placement.sites if kind in _SITES}
        overrides: dict[tuple[int, int], dict] = {}
        for node in doc.sequence(top["overrides"], "overrides") if "overrides" in top else ():
            every = ("at", "port", *dict.fromkeys(name for kind in _SITES.values() for name in parameters(kind)))
            found = doc.mapping(node, every, "an override")
            if "at" not in found:
                doc.refuse(node, "no 'at: [x, y]' in this override")
            xy = doc.coordinate(found.pop("at"), "at")
            if xy not in kinds:
                doc.refuse(node, f"nothing with parameters stands at {xy}; units and ports are at {sorted(kinds)}")
            if xy in overrides:
                doc.refuse(node, f"a second override for {xy}")
            records = parameters(_SITES[kinds[xy]])
            legal = (["port"] if kinds[xy] != "port" else []) + list(records)
            overrides[xy] = values = {}
            for name, value in found.items():
                if name not in legal:
                    doc.refuse(value, f"a {_WHAT[kinds[xy]]} has no {name}; {', '.join(legal)} are expected")
                if name == "port":
                    at = doc.coordinate(value, "port")
                    if at not in placement.of("port"):
                        doc.refuse(value, f"no memory port at {at}; ports are at {placement.of('port')}")
                    values["port"] = placement.of("port").index(at)
                else:
                    values[name] = self._value(value, name, records[name], ("override", xy, name))
        return overrides

    def _errata(self, top: dict[str, Node]) -> frozenset[str]:
        if "errata" not in top:
            return frozenset()
        doc, node = self.document, top["errata"]
        if isinstance(node.value, str):
            given: str | list[str] = doc.word(node, "errata")
            nodes = [node]
        else:
            nodes = doc.sequence(node, "errata")
            given = [doc.word(item, "an erratum") for item in nodes]
        try:
            return errata_registry.parse(given)
        except errata_registry.UnknownErratum as error:
            culprit = next((item for item in nodes if item.value == error.identifier), node)
            doc.refuse(culprit, str(error))

    def _locate(self, subject: tuple) -> str:
        if subject in self.marks:
            return self.marks[subject]
        if subject[0] == "parameter":
            _, xy, name = subject
            for key in (("override", xy, name), *((kind, name) for kind in (*_SITES, "memory", *_MACHINE_SECTIONS))):
                if key in self.marks:
                    return self.marks[key]
            for what in _WHAT.values():
                if ("site", what, xy) in self.marks:
                    return self.marks["site", what, xy]
        return self.document.where(self.document.root)


def _records(section: str) -> dict[str, dict]:
    """The parameters a section may set."""
    if section in _SITES:
        return parameters(_SITES[section])
    if section == "memory":
        return parameters(Dram)
    return {name: parameters(Machine)[name] for name in _MACHINE_SECTIONS[section]}


def _machine(name: str, placement: text_map.Placement, sections: dict, overrides: dict, general: dict) -> Machine:
    """Put a placement and the parameters together; unit binding is the nearest port unless overridden."""
    ports = placement.of("port")
    if not ports:
        raise MachineError("no memory port: a machine needs 1 to 4", subject=("ports",))
    own = placement.of("agent")

    def made(kind: str) -> tuple:
        sites = []
        for x, y in placement.of(kind):
            values = dict(sections.get(kind, {})) | overrides.get((x, y), {})
            if kind != "port":
                values.setdefault("port", nearest_port(placement.nx, placement.ny, ports, x, y))
            sites.append(_SITES[kind](x, y, **values))
        return tuple(sites)

    return Machine(
        name=name,
        nx=placement.nx,
        ny=placement.ny,
        agent=Agent(*own[0], own_endpoint=True) if own else Agent(*ports[0]),
        ports=made("port"),
        clusters=made("cluster"),
        vectors=made("vector"),
        spare=tuple(placement.of("spare")),
        memory=Dram(**sections.get("memory", {})),
        **sections.get("router", {}),
        **sections.get("orchestrator", {}),
        **general,
    )


def to_yaml(machine: Machine) -> str:
    """The YAML text of a machine: what differs from the defaults, and `from_yaml` gives an equal machine."""
    lines = [f"name: {_quoted(machine.name)}"]
    try:
        drawing = text_map.draw(machine)
        lines += ["map: |", *(f"  {row}" for row in drawing.splitlines())]
    except MachineError:
        lines += ["place:", f"  grid: [{machine.nx}, {machine.ny}]"]
        for key in _LISTS:
            places = [site if key == "spare" else site.xy for site in getattr(machine, key)]
            if places:
                lines.append(f"  {key}: [{', '.join(f'[{x}, {y}]' for x, y in places)}]")
        if machine.agent.own_endpoint:
            lines.append(f"  agent: [{machine.agent.x}, {machine.agent.y}]")
    overrides: dict[tuple[int, int], list[str]] = {}
    blocks = {key: (machine, _MACHINE_SECTIONS[key]) for key in _MACHINE_SECTIONS}
    blocks["memory"] = machine.memory, tuple(parameters(Dram))
    for key, (thing, names) in blocks.items():
        records = parameters(type(thing))
        lines += _block(key, {n: getattr(thing, n) for n in names if getattr(thing, n) != records[n]["default"]})
    for key, sites in (("port", machine.ports), ("cluster", machine.clusters), ("vector", machine.vectors)):
        section = {}
        for name, record in parameters(_SITES[key]).items():
            counts = Counter(getattr(site, name) for site in sites)
            usual = counts.most_common(1)[0][0] if counts else record["default"]
            if usual != record["default"]:
                section[name] = usual
            for site in sites:
                if getattr(site, name) != usual:
                    overrides.setdefault(site.xy, []).append(f"{name}: {getattr(site, name)}")
        lines += _block(key, section)
    for unit in machine.units:
        if unit.port != machine.nearest_port(*unit.xy):
            x, y = machine.port_of(unit).xy
            overrides.setdefault(unit.xy, []).append(f"port: [{x}, {y}]")
    if overrides:
        lines.append("overrides:")
        lines += [f"  - {{at: [{x}, {y}], {', '.join(values)}}}" for (x, y), values in sorted(overrides.items())]
    if machine.errata:
        whole = machine.errata == errata_registry.parse("published")
        lines.append("errata: published" if whole else f"errata: [{', '.join(sorted(machine.errata))}]")
    if machine.compile_only:
        lines.append("compile_only: true")
    return "\n".join(lines) + "\n"


def _block(key: str, values: dict[str, int]) -> list[str]:
    return [f"{key}:", *(f"  {name}: {value}" for name, value in values.items())] if values else []


def _quoted(name: str) -> str:
    """A name as YAML: quoted, so that no reader takes it for a number or a boolean."""
    return f'"{name}"'
