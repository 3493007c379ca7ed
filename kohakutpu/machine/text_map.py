"""The text map of a mesh: one row a line, one three-character token a site (spec: map text grammar).

    xxx vec xxx xxx      north edge
    mag agt mat xxx      routers (1,1) and (2,1) between the west and east edges
    xxx xxx xxx xxx      south edge

`xxx` or `...` nothing, `nul` a port that is tied off, `mag` a memory port, `mat` a matmul cluster, `vec` a
vector core, and this project's own token `agt`: the agent as an endpoint of its own. Dashes and spaces separate.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import NoReturn

from kohakutpu.wording import counted

from .description import GRID_MAX, MAX_PORTS, Machine, MachineError, site_kind

EMPTY = ("xxx", "...")
KINDS = {"nul": "spare port", "mag": "memory port", "mat": "cluster", "vec": "vector core", "agt": "agent"}
TOKENS = {kind: token for token, kind in KINDS.items()}
RETIRED = ("mgr", "acu")


@dataclass
class Placement:
    """What stands where, in scan order, with the source line and column (from 1) of each site."""

    nx: int
    ny: int
    sites: list[tuple[str, int, int]]
    marks: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def of(self, kind: str) -> list[tuple[int, int]]:
        """The coordinates of one kind, in scan order."""
        return [(x, y) for k, x, y in self.sites if k == kind]


def parse(text: str, *, source: str = "<picture>", first_line: int = 1, indent: int = 0) -> Placement:
    """Read a picture; every refusal names `source`, the line (the text starts at `first_line`) and the column.

    Raises MachineError.
    """

    def refuse(line: int, column: int, message: str) -> NoReturn:
        raise MachineError(message, where=f"{source}:{line}:{column}")

    rows: list[tuple[int, list[tuple[int, str]]]] = []
    for line, content in enumerate(text.split("\n"), first_line):
        content = content.split("#", 1)[0].removesuffix("\r")
        if "\t" in content:
            refuse(line, indent + content.index("\t") + 1, "a tab; tokens are separated by spaces or dashes")
        tokens = [(indent + m.start() + 1, m.group()) for m in re.finditer(r"[^ -]+", content)]
        for column, token in tokens:
            wrong = _token_fault(token)
            if wrong:
                refuse(line, column, wrong)
        if tokens:
            rows.append((line, tokens))
    last = rows[-1][0] if rows else first_line
    if len(rows) < 3:
        fault = f"{counted(len(rows), 'row')}; a north edge, at least one row of routers and a south edge are needed"
        refuse(last, indent + 1, fault)
    width = len(rows[0][1])
    for line, tokens in rows:
        if len(tokens) != width:
            refuse(line, tokens[-1][0], f"{counted(len(tokens), 'token')} in this row, {width} in the first")
    if width < 3:
        fault = f"{counted(width, 'column')}; a west edge, at least one router and an east edge are needed"
        refuse(rows[0][0], rows[0][1][-1][0], fault)
    nx, ny = width - 2, len(rows) - 2
    if nx > GRID_MAX:
        refuse(rows[0][0], rows[0][1][GRID_MAX + 2][0], f"{nx} routers wide; at most {GRID_MAX}")
    if ny > GRID_MAX:
        refuse(rows[GRID_MAX + 2][0], indent + 1, f"{ny} routers tall; at most {GRID_MAX}")

    placement = Placement(nx, ny, [])
    for y, (line, tokens) in enumerate(rows):
        for x, (column, token) in enumerate(tokens):
            if token in EMPTY:
                continue
            where = site_kind(nx, ny, x, y)
            if where == "corner":
                refuse(line, column, f"{token!r} at the corner ({x},{y}); a corner has no router and holds xxx or ...")
            if token == "mag" and where == "local":
                refuse(line, column, f"memory port at ({x},{y}) in the interior; a memory port stands on the edge ring")
            if token == "mag" and len(placement.of("memory port")) == MAX_PORTS:
                refuse(line, column, f"a fifth memory port; the memory agent has at most {MAX_PORTS}")
            if token == "agt" and placement.of("agent"):
                refuse(line, column, f"a second agent; the first is at {placement.of('agent')[0]}")
            placement.sites.append((KINDS[token], x, y))
            placement.marks[x, y] = line, column
    first = rows[0][0]
    if not placement.of("memory port"):
        refuse(first, indent + 1, "no mag token: a machine needs 1 to 4 memory ports")
    if not placement.of("cluster") and not placement.of("vector core"):
        refuse(first, indent + 1, "no unit: a machine needs a mat or a vec token")
    return placement


def _token_fault(token: str) -> str:
    known = (*KINDS, *EMPTY)
    if token in known:
        return ""
    if token in RETIRED:
        return f"token {token!r} was the two-port cluster, which is retired; a cluster is mat"
    if len(token) != 3:
        return f"token {token!r} has {counted(len(token), 'character')}; a token has 3"
    near = difflib.get_close_matches(token.lower(), known, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"unknown token {token!r}{hint}; tokens are {' '.join(known)}"


def draw(machine: Machine) -> str:
    """The picture of a machine, ending in a newline.

    Raises MachineError for a compile-only machine whose coordinates no picture can show.
    """
    sites: dict[tuple[int, int], str] = {}
    for what, xy in machine.placed:
        place = machine.site_kind(*xy)
        if xy in sites or place in ("corner", "outside") or (what == "memory port" and place == "local"):
            raise MachineError(f"machine {machine.name} has no picture: {what} at {xy} cannot exist on a mesh")
        sites[xy] = TOKENS[what]
    rows = ([sites.get((x, y), "xxx") for x in range(machine.nx + 2)] for y in range(machine.ny + 2))
    return "".join(" ".join(row) + "\n" for row in rows)
