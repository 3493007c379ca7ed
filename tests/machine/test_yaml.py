"""Machine files: what they say, and every statement that is refused, by line and column."""

from __future__ import annotations

import re

import pytest

from kohakutpu import errata
from kohakutpu.machine import MachineError, from_yaml, load

MAP = """\
name: board
map: |
  xxx vec vec xxx
  mag mat mat xxx
  mag mat mat xxx
  xxx xxx xxx xxx
"""

PLACE = """\
name: board
place:
  grid: [2, 2]
  ports: [[0, 1], [0, 2]]
  clusters: [[1, 1], [2, 1], [1, 2], [2, 2]]
  vectors:
    - [1, 0]
    - [2, 0]
"""


def refused(text: str, line: int, words: str, column: int | None = None) -> None:
    """Assert that `text` is refused at a line (and column), in these words."""
    with pytest.raises(MachineError) as caught:
        from_yaml(text, source="board.yaml")
    where = re.match(r"board\.yaml:(\d+):(\d+): (.*)", str(caught.value), re.DOTALL)
    assert where, str(caught.value)
    assert int(where[1]) == line, str(caught.value)
    assert column is None or int(where[2]) == column, str(caught.value)
    assert re.search(words, where[3]), str(caught.value)


def test_map_and_place_describe_the_same_machine():
    assert from_yaml(MAP) == from_yaml(PLACE)


def test_every_section_is_heard():
    machine = from_yaml(
        MAP
        + """\
router:
  fifo_depth: 64
orchestrator:
  staging_flits: 256
  tx_depth: 8
  rx_depth: 4
memory:
  bytes: 2 MiB
  latency: 7
  cycles_per_word: 3
port:
  queue_depth: 32
  write_slots: 24
cluster:
  tiles: 1024
  mantissa: 12
vector: {l1_words: 256, recv_depth: 17}
overrides:
  - {at: [2, 2], tiles: 64, b_entries: 16, bind: [0, 1]}
  - {at: [1, 0], inst_depth: 99, bind: [0, 2]}
  - {at: [0, 2], queue_depth: 128}
errata: [exp2-wrap, tree-alu]
"""
    )
    assert machine.fifo_depth == 64
    assert (machine.staging_flits, machine.tx_depth, machine.rx_depth) == (256, 8, 4)
    assert (machine.memory.bytes, machine.memory.latency, machine.memory.cycles_per_word) == (2 << 20, 7, 3)
    assert [(port.queue_depth, port.write_slots) for port in machine.ports] == [(32, 24), (128, 24)]
    assert [unit.tiles for unit in machine.clusters] == [1024, 1024, 1024, 64]
    assert [unit.b_entries for unit in machine.clusters] == [32, 32, 32, 16]
    assert [unit.mantissa for unit in machine.clusters] == [12] * 4
    assert [unit.port for unit in machine.clusters] == [0, 0, 1, 0]
    assert [unit.port for unit in machine.vectors] == [1, 0]
    assert [unit.l1_words for unit in machine.vectors] == [256, 256]
    assert [unit.inst_depth for unit in machine.vectors] == [99, 32]
    assert machine.port_of(machine.vectors[0]).xy == (0, 2)
    assert machine.errata == {"exp2-wrap", "tree-alu"}
    assert not machine.compile_only


def test_errata_published_is_every_reproducible_one():
    assert from_yaml(MAP + "errata: published\n").errata == errata.PUBLISHED
    assert from_yaml(MAP + "errata: fp32-store\n").errata == {"fp32-store"}
    assert from_yaml(MAP + "errata: []\n").errata == frozenset()


# ---- a number that YAML could read in two ways -----------------------------------------------------------

NUMBERS = {
    "010": "octal", "007": "octal", "-010": "octal", "0o17": "octal", "1e5": "float", "1E2": "float", "1.5e1": "float",
    "16.0": "", "1.": "", "0x20": "", "0b11": "", "1_000": "", "+16": "",
    "1:30": "", "yes": "boolean", "no": "boolean", "on": "boolean", "Off": "boolean", "true": "boolean",
    "~": "nothing", "null": "nothing", "": "nothing", "'16'": "quoted", '"16"': "quoted", "[16]": "a list",
    "{a: 1}": "a mapping", ".inf": "", ".nan": "", "16 # ok?#": None, "sixteen": "",
    "2026-11-29": "", "99999999999999999999": "",
}  # fmt: skip


@pytest.mark.parametrize("spelling", NUMBERS)
def test_only_plain_decimal_integers_are_numbers(spelling):
    text = f"{MAP}router:\n  fifo_depth: {spelling}\n"
    if NUMBERS[spelling] is None:
        assert from_yaml(text).fifo_depth == 16
    else:
        refused(text, 8, f"fifo_depth is a plain decimal integer.*{NUMBERS[spelling]}")


@pytest.mark.parametrize("spelling", [s for s in NUMBERS if s and NUMBERS[s] and s != "~"])
def test_coordinates_are_as_strict(spelling):
    refused(PLACE.replace("[2, 0]", f"[{spelling}, 0]"), 8, "a vector core's place's x is a plain decimal integer")


@pytest.mark.parametrize("spelling", ["yes", "no", "on", "off", "True", "FALSE", "y", "1", "'true'", "", "[true]"])
def test_only_true_and_false_are_booleans(spelling):
    refused(f"{MAP}compile_only: {spelling}\n", 7, "compile_only is true or false")


@pytest.mark.parametrize("spelling", "yes off 010 1e5 12 1.5 null ~ 2026-11-29 0x10 1:30".split())
def test_a_name_that_yaml_reads_otherwise_must_be_quoted(spelling):
    if spelling == "1e5":  # a string in YAML 1.1, a float in 1.2: it is only a name here
        assert from_yaml(MAP.replace("board", spelling)).name == spelling
        return
    refused(MAP.replace("board", spelling), 1, "name is a word, but YAML reads", 7)
    if re.fullmatch(r"[\w.+-]+", spelling):
        assert from_yaml(MAP.replace("board", f"'{spelling}'")).name == spelling


@pytest.mark.parametrize(
    ("spelling", "size"),
    [("65536", 65536), ("64 KiB", 65536), ("64KiB", 65536), ("3 MiB", 3 << 20), ("64 GiB", 64 << 30)],
)
def test_sizes(spelling, size):
    assert from_yaml(f"{MAP}memory:\n  bytes: {spelling}\n").memory.bytes == size


@pytest.mark.parametrize(
    "spelling",
    ["64 MB", "64M", "0x10000", "0200000", "1e6", "6.4 MiB", "064 KiB", "64  KiB", "65537", "4096", "65 GiB"],
)
def test_sizes_refused(spelling):
    refused(f"{MAP}memory:\n  bytes: {spelling}\n", 8, "bytes", 10)


# ---- structure ---------------------------------------------------------------------------------------------

STRUCTURE = {
    "empty file": ("", 1, "an empty file"),
    "only comments": ("# nothing here\n", 1, "an empty file"),
    "a list": ("- name: board\n", 1, "a machine is a mapping"),
    "a word": ("board\n", 1, "a machine is a mapping"),
    "no name": (MAP.replace("name: board\n", ""), 1, "no name"),
    "no map": ("name: board\n", 1, "no map and no place"),
    "map and place": (MAP + PLACE.split("\n", 1)[1], 8, "map and place both"),
    "unknown key": (MAP + "fifo_depht: 4\n", 7, "unknown key 'fifo_depht' in a machine"),
    "near key": (MAP + "clusters:\n  tiles: 4\n", 7, "did you mean cluster"),
    "near key inside": (MAP + "cluster:\n  tile: 4\n", 8, "unknown key 'tile' in cluster; did you mean tiles"),
    "key of another section": (MAP + "vector:\n  tiles: 4\n", 8, "unknown key 'tiles' in vector"),
    "key of nothing": (MAP + "? [1, 2]\n: 3\n", 7, "a key of a machine is a word"),
    "duplicate key": (MAP + "router: {fifo_depth: 4}\nrouter: {fifo_depth: 8}\n", 8, "duplicate key 'router'.*line 7"),
    "duplicate name": ("name: a\n" + MAP, 2, "duplicate key 'name'.*line 1"),
    "duplicate inside": (MAP + "cluster:\n  tiles: 4\n  tiles: 8\n", 9, "duplicate key 'tiles' in cluster.*line 8"),
    "section is a number": (MAP + "cluster: 4\n", 7, "cluster is a mapping"),
    "section is empty": (MAP + "cluster:\n", 7, "cluster is a mapping with keys tiles.*not nothing"),
    "section is a list": (MAP + "cluster: [tiles]\n", 7, "cluster is a mapping.*not a list"),
    "tab as indent": (MAP + "cluster:\n\ttiles: 4\n", 8, "a tab"),
    "tab after colon": (MAP + "cluster:\n  tiles:\t4\n", 8, "a tab"),
    "tab in the map": (MAP.replace("mag mat mat xxx\n  xxx", "mag\tmat mat xxx\n  xxx"), 5, "a tab"),
    "tab in a comment": (MAP + "# a\ttab\n", 7, "a tab"),
    "next line character": (MAP + "# a\x85b\n", 7, r"line break U\+0085"),
    "carriage return alone": (MAP + "# a\rb\n", 7, r"line break U\+000D"),
    "control character": (MAP + "# a\x07b\n", 7, r"character U\+0007"),
    "anchor": (MAP + "cluster: &c\n  tiles: 4\n", 7, "anchor &c"),
    "alias": (MAP + "cluster: *c\n", 7, r"alias \*c"),
    "anchor on a value": (MAP + "cluster:\n  tiles: &t 4\n", 8, "anchor &t"),
    "merge key": (MAP + "cluster:\n  <<: {tiles: 4}\n", 8, "merge key"),
    "merge key at the top": (MAP + "<<: {router: 4}\n", 7, "merge key"),
    "explicit tag": (MAP + "cluster:\n  tiles: !!int '4'\n", 8, "explicit tag"),
    "python tag": (MAP + "cluster: !!python/object:os.system {}\n", 7, "explicit tag"),
    "second document": (MAP + "---\n" + MAP, 7, "a second YAML document"),
    "not YAML": (MAP + "cluster: {tiles: 4\nrouter: 3\n", 8, "not YAML"),
    "bad indent": (MAP + "cluster:\n  tiles: 4\n mantissa: 12\n", 9, "not YAML"),
    "nested deeply": (MAP + "cluster:\n  " + "[" * 4000 + "]" * 4000 + "\n", 8, "nested 17 deep"),
    "name with a space": (MAP.replace("board", "a board"), 1, "letters, digits"),
    "empty name": (MAP.replace("board", "''"), 1, "letters, digits"),
    "name is a list": (MAP.replace("board", "[a]"), 1, "name is a word, not a list"),
    "folded map": (MAP.replace("|", ">"), 2, "map is a literal block"),
    "map on one line": ("name: a\nmap: xxx vec xxx\n", 2, "map is a literal block"),
    "empty map": ("name: a\nmap: |\nrouter:\n  fifo_depth: 4\n", 2, "map is empty"),
    "unknown erratum": (MAP + "errata:\n  - exp2-wrap\n  - fp32-stroe\n", 9, "'fp32-stroe'; did you mean fp32-store"),
    "unknown lone erratum": (MAP + "errata: publish\n", 7, "unknown erratum 'publish'"),
    "erratum twice": (MAP + "errata: [exp2-wrap, exp2-wrap]\n", 7, "a second time"),
    "published in a list": (MAP + "errata: [published]\n", 7, "published stands alone"),
    "errata is a mapping": (MAP + "errata: {exp2-wrap: true}\n", 7, "an erratum is a word, not a mapping"),
    "errata is nothing": (MAP + "errata:\n", 7, "an erratum is a word"),
    "errata is a boolean": (MAP + "errata: on\n", 7, "YAML reads 'on' as a boolean"),
}  # fmt: skip


@pytest.mark.parametrize("case", STRUCTURE)
def test_structure_refused(case):
    refused(*STRUCTURE[case])


# ---- places --------------------------------------------------------------------------------------------------

PLACES = {
    "no grid": (PLACE.replace("  grid: [2, 2]\n", ""), 3, "no grid in place"),
    "grid is a number": (PLACE.replace("[2, 2]\n  p", "4\n  p"), 3, r"grid is a pair \[x, y\], not '4'"),
    "grid of three": (PLACE.replace("[2, 2]\n  p", "[2, 2, 2]\n  p"), 3, r"grid is a pair \[x, y\], not 3 values"),
    "grid of none": (PLACE.replace("[2, 2]\n  p", "[0, 2]\n  p"), 3, "0 routers wide; 1 to 14"),
    "grid too wide": (PLACE.replace("[2, 2]\n  p", "[15, 2]\n  p"), 3, "15 routers wide; 1 to 14"),
    "grid too tall": (PLACE.replace("[2, 2]\n  p", "[2, 15]\n  p"), 3, "15 routers tall; 1 to 14"),
    "ports missing": (PLACE.replace("  ports: [[0, 1], [0, 2]]\n", ""), 3, "no memory port"),
    "ports empty": (PLACE.replace("[[0, 1], [0, 2]]", "[]"), 4, "no memory port"),
    "ports is a pair": (PLACE.replace("[[0, 1], [0, 2]]", "[0, 1]"), 4, r"a memory port's place is a pair \[x, y\]"),
    "ports is a number": (PLACE.replace("[[0, 1], [0, 2]]", "3"), 4, "ports is a list, not '3'"),
    "five ports": (
        PLACE.replace("[0, 2]]", "[0, 2],\n    [3, 1], [3, 2],\n    [1, 3]]"), 6, "5 memory ports; .* at most 4",
    ),
    "interior port": (
        PLACE.replace("[[0, 1], [0, 2]]", "[[1, 1]]").replace("[[1, 1], [2", "[[2"), 4, "in the interior",
    ),
    "port at a corner": (PLACE.replace("[0, 2]]", "[0, 0]]"), 4, r"memory port at \(0,0\) is at a corner"),
    "unit at a corner": (PLACE.replace("[2, 0]", "[3, 0]"), 8, r"vector core at \(3,0\) is at a corner"),
    "unit outside": (PLACE.replace("[2, 0]", "[4, 1]"), 8, r"vector core at \(4,1\) is outside the mesh on a 2x2 grid"),
    "coordinate overflow": (PLACE.replace("[2, 0]", "[16, 0]"), 8, r"vector core at \(16,0\): a coordinate is 0 to 15"),
    "negative coordinate": (PLACE.replace("[2, 0]", "[2, -1]"), 8, r"vector core at \(2,-1\): a coordinate is 0 to 15"),
    "same unit twice": (
        PLACE.replace("[2, 0]", "[1, 0]"), 8, r"vector core at \(1,0\): .* already holds a vector core",
    ),
    "two kinds on one place": (
        PLACE.replace("[2, 0]", "[1, 1]"), 8, r"vector core at \(1,1\): .* already holds a cluster",
    ),
    "unit on a port": (PLACE.replace("[2, 0]", "[0, 2]"), 8, "already holds a memory port"),
    "agent on a unit": (PLACE + "  agent: [2, 1]\n", 9, r"agent at \(2,1\): that coordinate already holds a cluster"),
    "agent on a port": (
        PLACE + "  agent: [0, 1]\n", 9, r"agent at \(0,1\): that coordinate already holds a memory port",
    ),
    "agent at a corner": (PLACE + "  agent: [0, 0]\n", 9, r"agent at \(0,0\) is at a corner"),
    "agent is a list of pairs": (
        PLACE + "  agent: [[3, 1]]\n", 9, r"an? agent's place is a pair \[x, y\], not 1 value",
    ),
    "spare on a unit": (PLACE + "  spare: [[3, 1], [2, 2]]\n", 9, r"spare port at \(2,2\): .* already holds a cluster"),
    "no unit": ("name: a\nplace:\n  grid: [1, 1]\n  ports: [[0, 1]]\n", 3, "no unit"),
    "unknown kind": (PLACE + "  vectrs: [[3, 1]]\n", 9, "unknown key 'vectrs' in place; did you mean vectors"),
    "compile-only overflow": (
        PLACE.replace("[2, 0]", "[16, 0]") + "compile_only: true\n", 8, "a coordinate is 0 to 15",
    ),
    "compile-only duplicate": (
        PLACE.replace("[2, 0]", "[1, 1]") + "compile_only: true\n", 8, "already holds a cluster",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES)
def test_places_refused(case):
    refused(*PLACES[case])


@pytest.mark.parametrize("place", [(3, 0), (9, 9), (1, 1)])
def test_a_compile_only_machine_may_name_places_no_mesh_has(place):
    text = PLACE + f"  agent: {list(place)}\ncompile_only: true\n"
    machine = from_yaml(text)
    assert machine.agent.xy == place and machine.compile_only
    with pytest.raises(MachineError, match="machine board is compile-only"):
        machine.require_mesh()
    with pytest.raises(MachineError, match=r"agent at \(\d,\d\)"):
        from_yaml(text.replace("true", "false"))


# ---- overrides and ranges ----------------------------------------------------------------------------------------

OVERRIDES = {
    "no at": ("{tiles: 64}", "no 'at: .x, y.'"),
    "nothing there": ("{at: [3, 1], tiles: 64}", r"no unit and no memory port at \(3, 1\)"),
    "says nothing": ("{at: [1, 1]}", "says nothing"),
    "not of this kind": ("{at: [1, 0], tiles: 64}", "a vector core has no tiles; it has l1_words"),
    "port bound": ("{at: [0, 1], bind: [0, 2]}", "a memory port has no bind"),
    "bound to no port": ("{at: [1, 1], bind: [0, 3]}", r"no memory port at \(0, 3\); they are at"),
    "bound by number": ("{at: [1, 1], bind: 1}", r"bind is a pair \[x, y\]"),
    "unknown": ("{at: [1, 1], tilse: 4}", "did you mean tiles"),
    "out of range": ("{at: [1, 1], mantissa: 9}", "mantissa = 9; 10 to 16 is expected"),
    "not a mapping": ("tiles", "an override is a mapping"),
    "too few slots": ("{at: [0, 1], write_slots: 2}", r"\(0,1\) has 2 write slots for 4 endpoints"),
}  # fmt: skip


@pytest.mark.parametrize("case", OVERRIDES)
def test_overrides_refused(case):
    item, words = OVERRIDES[case]
    refused(f"{MAP}overrides:\n  - {{at: [2, 2], tiles: 64}}\n  - {item}\n", 9, words)


def test_a_second_override_of_one_place_is_refused():
    items = "  - {at: [2, 2], tiles: 64}\n  - {at: [2, 2], mantissa: 12}\n"
    refused(f"{MAP}overrides:\n{items}", 9, r"a second override for \(2, 2\)")


def test_too_few_write_slots_names_the_section():
    refused(MAP + "port:\n  write_slots: 2\n", 8, r"\(0,1\) has 2 write slots for 4 endpoints")


RANGES = [
    ("router", "fifo_depth", 2, 4096), ("orchestrator", "staging_flits", 1, 1433),
    ("orchestrator", "tx_depth", 2, 1024), ("orchestrator", "rx_depth", 2, 1024),
    ("memory", "latency", 1, 10000), ("memory", "cycles_per_word", 1, 1024),
    ("port", "queue_depth", 8, 4096), ("cluster", "tiles", 8, 32768), ("cluster", "a_entries", 4, 512),
    ("cluster", "b_entries", 4, 512), ("cluster", "mantissa", 10, 16), ("cluster", "inst_depth", 2, 65535),
    ("cluster", "recv_depth", 2, 65535), ("vector", "l1_words", 64, 512), ("vector", "inst_depth", 2, 65535),
    ("vector", "recv_depth", 2, 65535),
]  # fmt: skip


@pytest.mark.parametrize(("section", "name", "low", "high"), RANGES)
def test_ranges(section, name, low, high):
    for value in (low, high):
        from_yaml(f"{MAP}{section}:\n  {name}: {value}\n")
    for value in (low - 1, high + 1, -low):
        refused(f"{MAP}{section}:\n  {name}: {value}\n", 8, f"{name} = {value}; {low} to {high} is expected")


@pytest.mark.parametrize("name", ["tiles", "a_entries", "b_entries"])
def test_powers_of_two(name):
    refused(f"{MAP}cluster:\n  {name}: 48\n", 8, "a power of two")


# ---- finding -------------------------------------------------------------------------------------------------------


def test_a_machine_is_found_by_name_and_by_path(tmp_path):
    path = tmp_path / "copy.yaml"
    path.write_text(MAP)
    assert load(path) == load(str(path)) == from_yaml(MAP)
    assert load("quad").name == "quad"


def test_an_unknown_name_gets_the_closest():
    with pytest.raises(MachineError, match="no machine is called 'ship_3x3'.*mm_mesh.*did you mean ship_[23]x2"):
        load("ship_3x3")
    with pytest.raises(MachineError, match="cannot read machine file nowhere/quad.yaml: No such file"):
        load("nowhere/quad.yaml")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes(MAP.encode() + b"# caf\xe9\n")
    with pytest.raises(MachineError, match=r"latin\.yaml:7:1: not UTF-8"):
        load(path)
