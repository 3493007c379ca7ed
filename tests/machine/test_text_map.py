"""The text map: what it says, and every map that is refused, by line and column."""

from __future__ import annotations

import re

import pytest

from kohakutpu.machine import MachineError, from_picture, from_yaml, load, picture

PLAIN = """\
xxx vec xxx
mag mat xxx
xxx xxx xxx
"""


def test_a_map_places_everything_in_scan_order():
    machine = from_picture(
        """
        # a comment line, and dashes as separators
        xxx-nul-vec-xxx     # north edge
        mag-agt-mat-vec

        mag mat ... xxx
        ... mat xxx xxx
        """,
        name="m",
    )
    assert (machine.nx, machine.ny) == (2, 2)
    assert [port.xy for port in machine.ports] == [(0, 1), (0, 2)]
    assert [unit.xy for unit in machine.clusters] == [(2, 1), (1, 2), (1, 3)]
    assert [unit.xy for unit in machine.vectors] == [(2, 0), (3, 1)]
    assert machine.spare == ((1, 0),)
    assert (machine.agent.xy, machine.agent.own_endpoint) == ((1, 1), True)
    assert [unit.xy for unit in machine.units] == [(2, 0), (2, 1), (3, 1), (1, 2), (1, 3)]
    assert picture(machine) == "xxx nul vec xxx\nmag agt mat vec\nmag mat xxx xxx\nxxx mat xxx xxx\n"


def test_without_an_agent_token_the_agent_is_at_port_0():
    machine = from_picture("xxx mag xxx\nmag mat xxx\nxxx xxx xxx\n", name="m")
    assert [port.xy for port in machine.ports] == [(1, 0), (0, 1)]
    assert (machine.agent.xy, machine.agent.own_endpoint) == ((1, 0), False)


def _wide(routers: int) -> str:
    edge = " ".join(["xxx"] * (routers + 2))
    return f"{edge}\nmag {' '.join(['mat'] * routers)} xxx\n{edge}\n"


def _tall(routers: int) -> str:
    return "xxx xxx xxx\nmag mat xxx\n" + "xxx mat xxx\n" * (routers - 1) + "xxx xxx xxx\n"


REFUSED = {
    "token of two characters": ("xxx ve xxx\nmag mat xxx\nxxx xxx xxx\n", 1, 5, "'ve' has 2 characters"),
    "token of four characters": ("xxx vec xxx\nmag mat xxx\nxxx xxxx xxx\n", 3, 5, "'xxxx' has 4 characters"),
    "retired mgr": ("xxx mgr xxx\nmag mat xxx\nxxx xxx xxx\n", 1, 5, "'mgr' was the two-port cluster"),
    "retired acu": ("xxx vec xxx\nmag acu xxx\nxxx xxx xxx\n", 2, 5, "'acu' was the two-port cluster"),
    "unknown token": ("xxx vec xxx\nmag mta xxx\nxxx xxx xxx\n", 2, 5, "unknown token 'mta' .did you mean mat."),
    "upper case": ("xxx VEC xxx\nmag mat xxx\nxxx xxx xxx\n", 1, 5, "unknown token 'VEC' .did you mean vec."),
    "tab": ("xxx vec xxx\nmag mat xxx\nxxx\txxx xxx\n", 3, 4, "a tab"),
    "trailing tab": ("xxx vec xxx\nmag mat xxx\t\nxxx xxx xxx\n", 2, 12, "a tab"),
    "empty": ("", 1, 1, "0 rows"),
    "only comments": ("# nothing\n\n# here\n", 1, 1, "0 rows"),
    "two rows": ("xxx vec xxx\nmag mat xxx\n", 2, 1, "2 rows"),
    "short row": ("xxx vec xxx\n\n# gap\nmag mat\nxxx xxx xxx\n", 4, 5, "2 tokens in this row, 3 in the first"),
    "long row": ("xxx vec xxx\nmag mat xxx\nxxx xxx xxx xxx\n", 3, 13, "4 tokens in this row, 3 in the first"),
    "two columns": ("xxx xxx\nmag xxx\nxxx xxx\n", 1, 5, "2 columns"),
    "unit at a corner": ("vec xxx xxx\nmag mat xxx\nxxx xxx xxx\n", 1, 1, r"'vec' at the corner \(0,0\)"),
    "nul at a corner": ("xxx vec xxx\nmag mat xxx\nxxx xxx nul\n", 3, 9, r"'nul' at the corner \(2,2\)"),
    "agent at a corner": ("xxx vec agt\nmag mat xxx\nxxx xxx xxx\n", 1, 9, r"'agt' at the corner \(2,0\)"),
    "five ports": (
        "xxx mag mag xxx\nmag mat mat mag\nmag mat mat xxx\nxxx xxx xxx xxx\n", 3, 1, "a fifth memory port",
    ),
    "no port": ("xxx vec xxx\nxxx mat xxx\nxxx xxx xxx\n", 1, 1, "no mag token"),
    "interior port": ("xxx vec xxx xxx\nmag mag mat xxx\nxxx xxx xxx xxx\n", 2, 5, r"at \(1,1\) in the interior"),
    "no unit": ("xxx nul xxx\nmag agt xxx\nxxx xxx xxx\n", 1, 1, "no unit"),
    "two agents": ("xxx vec agt xxx\nmag agt mat xxx\nxxx xxx xxx xxx\n", 2, 5, r"a second agent.* at \(2, 0\)"),
    "15 wide": (_wide(15), 1, 65, "15 routers wide; at most 14"),
    "15 tall": (_tall(15), 17, 1, "15 routers tall; at most 14"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_maps_name_line_and_column(case):
    text, line, column, words = REFUSED[case]
    with pytest.raises(MachineError, match=f"^board.map:{line}:{column}: .*{words}"):
        from_picture(text, name="m", source="board.map")


@pytest.mark.parametrize("case", [case for case, (text, *_) in REFUSED.items() if "\t" not in text and text])
def test_the_same_maps_in_yaml_name_the_line_of_the_file(case):
    text, line, column, words = REFUSED[case]
    body = "".join(f"   {row}\n" if row else "\n" for row in text.splitlines())
    with pytest.raises(MachineError, match=f"^board.yaml:{line + 3}:{column + 3}: .*{words}"):
        from_yaml(f"# a board\nname: m\nmap: |\n{body}router:\n  fifo_depth: 8\n", source="board.yaml")


@pytest.mark.parametrize("text", [_wide(14), _tall(14)])
def test_fourteen_routers_are_the_most(text):
    machine = from_picture(text, name="m")
    assert machine.grid_hi == 14
    assert from_picture(picture(machine), name="m") == machine


def test_a_map_file_loads_by_its_name(tmp_path):
    path = tmp_path / "board.map"
    path.write_bytes(PLAIN.replace("\n", "\r\n").encode())
    assert load(path) == from_picture(PLAIN, name="board")
    path.write_text(PLAIN.replace("mat", "mgr"))
    with pytest.raises(MachineError, match=f"^{re.escape(str(path))}:2:5: "):
        load(str(path))


def test_what_no_map_can_show_has_no_picture():
    with pytest.raises(MachineError, match=r"seed_case has no picture: vector core at \(3, 0\) cannot exist on a mesh"):
        picture(load("seed_case"))


def test_more_writers_than_write_slots_names_the_port():
    rows = ["xxx" + " vec" * 9 + " xxx", "mag" + " mat" * 9 + " vec", "xxx" + " vec" * 9 + " xxx"]
    with pytest.raises(MachineError, match="^board.map:2:1: .*16 write slots for 28 endpoints"):
        from_picture("\n".join(rows), name="m", source="board.map")
