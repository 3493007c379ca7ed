"""What the byte comparison of vector kernels sees: each fault, put into the compiler, is met by a kernel that shows it."""

import dataclasses
import sys
from pathlib import Path

import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import expressions, rows, rowcode, rowstream, rowwords
from kohakutpu.isa.vector import Opcode, RedKind
from kohakutpu.kernels import elementwise
from kohakutpu.kernels import rows as library
from kohakutpu.kernels.attention import attention
from kohakutpu.lang import dims, kernel
from kohakutpu.lang.trace import ElementOp, RowOp

sys.path.insert(0, str(Path(__file__).parent))
from running import equal_bytes  # noqa: E402

M, N = dims("M, N")
LAYER = (library.layernorm, {"x": (7, 40), "w": (40,), "b": (40,)}, {})
SOFT = (library.softmax, {"x": (5, 77)}, {})
WIDE = (library.row_sum, {"x": (3, 300)}, {})
LONG = (library.layernorm, {"x": (1, 2700), "w": (2700,), "b": (2700,)}, {})
ATTENTION = (attention, {"q": (9, 32), "k": (64, 32), "v": (8, 64)}, {"gm": 2, "causal": True})


@kernel
def two_at_once(x=L.In(M, N), y=L.Out(M, N)):
    y <<= x * L.row_max(x) + L.row_sum(x)


def masks_nothing(monkeypatch):
    monkeypatch.setattr(rowwords.Stream, "_mask", lambda *_: None)


def masks_with_zero(monkeypatch):
    monkeypatch.setitem(rowwords.IDENTITY, RowOp.MAX, 0)


def takes_any_product_in(monkeypatch):
    """DOT on a ragged row: what lies past its end is multiplied too."""
    taken_in = rowwords.RowWords.taken_in

    def always(self, position, piece, reduced):
        whole = rowwords.Piece(piece.word, piece.length)
        return taken_in(self, position, whole, reduced)

    monkeypatch.setattr(rowwords.RowWords, "taken_in", always)


def combines_backwards(monkeypatch):
    monkeypatch.setitem(rowwords.COMBINE, RowOp.SUM, (Opcode.VSUB, "c"))


def forgets_a_piece(monkeypatch):
    pieces = rowwords.pieces_of
    monkeypatch.setattr(rowwords, "pieces_of", lambda columns: pieces(columns)[:2])


def joins_the_wrong_groups(monkeypatch):
    monkeypatch.setattr(rowwords, "JOINS", ((0, 1, 2), (2, 3, 1), (0, 2, 1)))


def sums_with_max(monkeypatch):
    monkeypatch.setitem(rowwords.KINDS, RowOp.SUM, RedKind.MAX)


def swaps_a_choice(monkeypatch):
    monkeypatch.setitem(expressions.COMPARES, ElementOp.WHERE_EQUAL, Opcode.VCMPGT)


def starts_again_with_old_weights(monkeypatch):
    plan = rows.plan

    def planned(stage, images):
        made = plan(stage, images)
        for key, span in list(made.spans.items())[1:]:
            made.spans[key] = rows.RowSpan(span.copy, 0, span.rows)
        return made

    monkeypatch.setattr(rows, "plan", planned)


def starts_every_segment_anew(monkeypatch):
    combine = rowstream._Rows._combine
    monkeypatch.setattr(rowstream._Rows, "_combine", lambda self, *given: combine(self, *given[:-1], False))


def hands_on_in_one_register(monkeypatch):
    """What runs leave for later ones shares a register."""
    assign = rowcode._assign

    def one(words, scalars, pinned, leaving):
        settled, held = assign(words, scalars, pinned, leaving)
        first: dict[str, int] = {}
        return settled, {reg: first.setdefault(reg.bank, held[reg]) for reg in held if reg in leaving}

    monkeypatch.setattr(rowcode, "_assign", one)


def moves_no_segment(monkeypatch):
    segments = rowstream.segments_of
    monkeypatch.setattr(
        rowstream, "segments_of", lambda *given: [dataclasses.replace(s, word=0) for s in segments(*given)]
    )


@pytest.mark.parametrize(
    "fault, case",
    [
        (masks_nothing, SOFT), (masks_with_zero, (library.row_max, {"x": (200, 5)}, {})), (takes_any_product_in, LAYER),
        (combines_backwards, WIDE), (forgets_a_piece, WIDE), (joins_the_wrong_groups, ATTENTION), (sums_with_max, LAYER),
        (swaps_a_choice, (elementwise.where, {"c": (9, 9), "a": (9, 9), "b": (9, 9)}, {})),
        (starts_every_segment_anew, LONG), (hands_on_in_one_register, (two_at_once, {"x": (1, 5200)}, {})), (moves_no_segment, LONG),
        (starts_again_with_old_weights, (library.rmsnorm, {"x": (40, 40), "w": (40,)}, {"part": 400})),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_seen(fault, case, monkeypatch):
    made, shapes, knobs = case
    equal_bytes(made, shapes, "mm_mesh", knobs)
    fault(monkeypatch)
    with pytest.raises(AssertionError, match="elements of . differ"):
        equal_bytes(made, shapes, "mm_mesh", knobs)
