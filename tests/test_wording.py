"""Numbers of things in words."""

import pytest

from kohakutpu.wording import counted


@pytest.mark.parametrize(
    "given, text",
    [
        (counted(0, "flit"), "0 flits"),
        (counted(1, "flit"), "1 flit"),
        (counted(-1, "word"), "-1 words"),
        (counted(1, "flit", "sent"), "1 flit sent"),
        (counted(2, "vector core"), "2 vector cores"),
        (counted(1, "entry", plural="entries"), "1 entry"),
        (counted(3, "entry", "fetched", plural="entries"), "3 entries fetched"),
        (counted(12345, "event", form=","), "12,345 events"),
    ],
)
def test_counted(given, text):
    assert given == text
