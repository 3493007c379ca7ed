"""Every row of the language's specification is implemented or refused by name, and a test that exists proves it.

So is every reason of a refused launch; one that no back end can come to says why.

`python tests/xpu/test_rows.py` writes the table into docs/xpu.md.
"""

import ast
import re
from pathlib import Path

import pytest

from kohakutpu.xpu.launch import REASONS
from kohakutpu.xpu.verbs import VERBS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/xpu.md"
SPEC = HERE.parents[2] / "shared/spec/xpu.md"
BEGIN, END = "<!-- rows: written by tests/xpu/test_rows.py -->\n", "<!-- end of rows -->\n"
STATES = ("implemented", "refused", "cannot occur", "open")
# How many rows may still be open.
OPEN = 0


def rows() -> list[dict[str, str]]:
    """The rows of rows.tsv."""
    head, *lines = (HERE / "rows.tsv").read_text().splitlines()
    return [dict(zip(head.split("\t"), line.split("\t"), strict=True)) for line in lines]


def table() -> str:
    """The table as markdown."""
    lines = ["| spec | item | state | here | proof |", "|---|---|---|---|---|"]
    for row in rows():
        item = row["item"] if len(row["item"]) <= 90 else row["item"][:87] + "..."
        item = item + "`" if item.count("`") % 2 else item
        cells = [row["section"], item, row["status"], row["how"], row["test"].rpartition("::")[2]]
        lines.append("| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def items(text: str) -> list[tuple[str, str]]:
    """(section, first cell or text) of every table row, bullet and numbered point of sections 1 to 3."""
    found, section = [], "0"
    for line in text.splitlines():
        heading = re.match(r"#+ (\d+(?:\.\d+)?)", line)
        section = heading.group(1) if heading else section
        if section[0] not in "123" or heading:
            continue
        if set(line) <= set("|- ") and line:
            if line.startswith("|"):
                found.pop()  # what stood above was the table's head
        elif line.startswith("|"):
            found.append((section, re.split(r"(?<!\\)\|", line)[1].strip()))
        elif point := re.match(r"(?:\*|\d+\.) (.*)", line):
            found.append((section, point.group(1)))
    return found


def missing(spec: list, listed: list[dict[str, str]]) -> list:
    """The spec's items without a row, and rows without an item."""
    have = {(row["section"], row["item"]) for row in listed if row["kind"] == "item"}
    return sorted(have ^ set(spec))


@pytest.mark.skipif(not SPEC.is_file(), reason="the specification does not lie beside this checkout")
def test_no_row_of_the_specification_is_missing():
    spec = items(SPEC.read_text())
    assert len(spec) > 130 and not missing(spec, rows())


def test_a_missing_row_is_found():
    spec = items(
        "## 1.2 T\n| a | b |\n|---|---|\n| bool | x |\n| ints \\| more | y |\n* a point\n3. third\n## 4. no\n* not\n"
    )
    assert spec == [("1.2", "bool"), ("1.2", "ints \\| more"), ("1.2", "a point"), ("1.2", "third")]
    listed = [{"section": "1.2", "kind": "item", "item": text} for text in ("bool", "ints \\| more", "a point", "old")]
    assert missing(spec, listed) == [("1.2", "old"), ("1.2", "third")]


def test_every_row_has_a_state_and_a_proof_that_exists():
    tests = set()
    for path in HERE.glob("test_*.py"):
        body = ast.parse(path.read_text()).body
        tests |= {f"{path.name}::{node.name}" for node in body if isinstance(node, ast.FunctionDef)}
    for row in rows():
        assert row["status"] in STATES, row
        assert (row["test"] in tests) if row["status"] != "open" else (row["how"]), row
    assert sum(row["status"] == "open" for row in rows()) == OPEN


def test_every_reason_of_a_refused_launch_has_a_row():
    assert [row["item"] for row in rows() if row["section"] == "5.3"] == list(REASONS)


def test_every_built_in_is_used_by_a_test():
    text = "".join(path.read_text() for path in HERE.glob("test_*.py") if path.name != "test_rows.py")
    words = set(re.findall(r"\w+", text))
    assert not [name for name in VERBS if name.rpartition(".")[2] not in words]


def test_the_page_holds_the_table():
    page = PAGE.read_text()
    assert page.partition(BEGIN)[2].partition(END)[0] == table(), "run python tests/xpu/test_rows.py"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
