"""The registry of published misbehaviours and how a machine file names them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kohakutpu import errata


def test_published_is_what_the_models_can_reproduce():
    assert errata.PUBLISHED == {
        "exp2-wrap", "fp32-store", "vcvt-late", "vote-register", "expsum-stale-predicate", "reject-silent",
        "caps-buffers", "write-orphan",
    }  # fmt: skip
    assert errata.parse("published") == errata.PUBLISHED


def test_every_entry_is_complete_and_says_two_things():
    assert len(errata.REGISTRY) == 27
    for identifier, entry in errata.REGISTRY.items():
        assert identifier == entry.id
        assert all((entry.published, entry.ours, entry.affected))
        assert entry.published != entry.ours


def test_identifiers_are_taken_one_by_one_or_together():
    assert errata.parse("exp2-wrap") == {"exp2-wrap"}
    assert errata.parse(["exp2-wrap", "l1-band"]) == {"exp2-wrap", "l1-band"}
    assert errata.parse([]) == frozenset()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("exp2_wrap", "unknown erratum 'exp2_wrap'; did you mean exp2-wrap"),
        (["fp32-store", "vcvt"], "unknown erratum 'vcvt'; did you mean vcvt-late"),
        ("zzzz", "unknown erratum 'zzzz'; identifiers are exp2-wrap, "),
        (["published"], "unknown erratum 'published'"),
    ],
)
def test_an_unknown_identifier_is_refused_with_the_closest(given, words):
    with pytest.raises(errata.UnknownErratum, match=words):
        errata.parse(given)


def test_every_reproducible_one_is_switched_on_somewhere():
    package = Path(errata.__file__).parent
    sources = [p.read_text() for p in package.rglob("*.py") if p.name != "errata.py"]
    asked = {i for i in errata.REGISTRY if any(re.search(rf'"{i}" (not )?in [\w.]*errata', s) for s in sources)}
    assert asked == errata.PUBLISHED
