"""docs/isa.md is what the tables say."""

from pathlib import Path

from kohakutpu.isa import markdown
from kohakutpu.isa.fields import Layout, field

DOCUMENT = Path(__file__).parents[2] / "docs" / "isa.md"


def test_the_document_is_in_step_with_the_tables():
    assert DOCUMENT.read_text() == markdown.document(), "run: python -m kohakutpu.isa.markdown > docs/isa.md"


def test_a_changed_table_changes_the_document(monkeypatch):
    monkeypatch.setattr(markdown.memory, "MEM_ACK", Layout("MEM_WR_ACK", 256, [field("status", 255, 248, "planted")]))
    text = markdown.document()
    assert text != DOCUMENT.read_text()
    assert "| 255:248 | `status` | 8 | 0 | planted |" in text
    assert "Reserved: 247:0." in text


def test_tables_are_well_formed():
    columns = None
    for line in markdown.document().splitlines():
        if not line.startswith("|"):
            columns = None
            continue
        cells = line.replace("\\|", "").count("|")
        columns = columns or cells
        assert cells == columns, line
