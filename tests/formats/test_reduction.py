"""Reductions: the recorded table, the order of the tree, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohakutpu.formats import alu, reduction
from kohakutpu.formats.reduction import Reduction
from kohakutpu.isa.vector import RedKind

I = np.arange(128)  # noqa: E741
A = ((I % 2) << 23 | (120 + 7 * I % 13) << 15 | (2731 * I + 17) % 32768).astype(np.uint32)
B = ((I // 2 % 2) << 23 | (118 + 5 * I % 17) << 15 | (1237 * I + 999) % 32768).astype(np.uint32)

TABLE = {
    128: "C2B148 424033 C2756A 46C444 C54F41 5787D8",
    48: "C2B446 420019 C2756A 4614C5 C33E18 4F9682",
    16: "C2D9A5 3F956B C2756A 459476 C25D54 414F43",
}
CASES = [(n, Reduction(kind), int(word, 16)) for n, row in TABLE.items() for kind, word in enumerate(row.split())]


@pytest.mark.parametrize("count, kind, wanted", CASES)
def test_recorded_table(count, kind, wanted):
    second = A if kind == Reduction.SUMSQ else B
    value, leaves = reduction.reduce(kind, A[:count], second[:count])
    assert f"{value:06X}" == f"{wanted:06X}"
    assert (leaves is not None) == (kind == Reduction.EXPSUM)


def test_expsum_leaves():
    _, leaves = reduction.reduce(Reduction.EXPSUM, A)
    assert [f"{word:06X}" for word in leaves[:4]] == ["3F80B2", "3EF18B", "3F81A1", "3E34E2"]
    assert (leaves == alu.exp2(A)).all()


def test_the_tree_is_not_a_running_sum():
    total = np.zeros(1, dtype=np.uint32)
    for element in B:
        total = alu.add(total, np.array([element]))
    assert int(total[0]) != reduction.reduce(Reduction.SUM, B)[0]


@pytest.mark.parametrize("kind", [Reduction.SUM, Reduction.SUMSQ, Reduction.DOT])
@pytest.mark.parametrize("distance", [1, 2, 4, 8, 16, 32, 64])
def test_the_left_operand_is_the_lower_index(kind, distance):
    """1 + 2^-15 and a subtrahend just above half its last bit meet in a node of every level.

    Addition is not commutative here: what `c` loses to the alignment counts upward, while `a` loses nothing.
    """
    ones = np.full(128, alu.ONE, dtype=np.uint32)
    for first, second, wanted in ((0x3F8001, 0xB78001, 0x3F8001), (0xB78001, 0x3F8001, 0x3F8000)):
        elements = np.zeros(128, dtype=np.uint32)
        elements[0], elements[distance] = first, second
        assert reduction.reduce(kind, elements, ones)[0] == wanted


# ---- an independent walk of the beats, one element at a time ------------------------------------------------


def one(function, *words: int) -> int:
    return int(function(*(np.array([word], dtype=np.uint32) for word in words))[0])


def oracle(kind: int, a: list[int], b: list[int]) -> int:
    node, identity = {1: (alu.maximum, 0xFF8000), 2: (alu.minimum, 0x7F8000)}.get(kind, (alu.add, 0))

    def tree(items: list[int]) -> int:
        if len(items) == 1:
            return items[0]
        half = len(items) // 2
        return one(node, tree(items[:half]), tree(items[half:]))

    beats = []
    for chunk in range(len(a) // 16):
        elements = list(range(16 * chunk, 16 * chunk + 16))
        if kind <= 2:
            beats.append([one(node, a[i], a[i + 1]) for i in elements[::2]])
            continue
        leaf = [one(alu.multiply, a[i], b[i]) if kind < 5 else one(alu.exp2, a[i]) for i in elements]
        beats += [leaf[:8], leaf[8:]]
    partials = [identity] * 16
    for k, leaves in enumerate(beats):
        partials[k] = one(node, tree(leaves), partials[k])
    return tree(partials)


banded = st.builds(
    lambda s, e, m: s << 23 | e << 15 | m, st.integers(0, 1), st.integers(110, 135), st.integers(0, 32767)
)
special = st.sampled_from([0x000000, 0x800000, 0x7F8000, 0xFF8000, 0x7FC000, 0x3F8000, 0x000001])
vectors = st.integers(1, 3).flatmap(
    lambda chunks: st.lists(st.one_of(banded, banded, special), min_size=16 * chunks, max_size=16 * chunks)
)


@given(st.integers(0, 5), vectors, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_against_the_walk(kind, a, random):
    b = random.sample(a, len(a))
    got, _ = reduction.reduce(kind, np.array(a, np.uint32), np.array(b, np.uint32))
    assert got == oracle(kind, a, b)


# ---- special rows, votes and refusals ----------------------------------------------------------------------


def test_maximum_of_negative_infinities():
    assert reduction.reduce(Reduction.MAX, np.full(16, 0xFF8000, np.uint32))[0] == 0xFF8000


def test_negative_zeros_sum_to_positive_zero():
    """Every total meets the identity +0 before the partials are combined."""
    least, half = np.full(128, 0x808000, np.uint32), np.full(128, 0x3F0000, np.uint32)
    assert (alu.multiply(least, half) == 0x800000).all()
    assert reduction.reduce(Reduction.DOT, least, half)[0] == 0


def test_a_nan_survives_only_on_the_left():
    left, right = (np.full(16, 0x3F8000, np.uint32) for _ in range(2))
    left[0] = right[1] = 0x7FC000
    assert reduction.reduce(Reduction.MAX, left)[0] == 0x7FC000
    assert reduction.reduce(Reduction.MAX, right)[0] == 0x3F8000


def test_expsum_follows_the_erratum():
    low = np.full(16, 0xC34800, np.uint32)  # -200
    assert reduction.reduce(Reduction.EXPSUM, low)[0] == 0
    value, leaves = reduction.reduce(Reduction.EXPSUM, low, exp2_wrap=True)
    assert (leaves == 0x5B8000).all() and value == 0x5D8000


def test_votes():
    bits = np.array([False, True, True])
    assert reduction.vote(Reduction.ANY, bits) == 0x3F8000
    assert reduction.vote(Reduction.ALL, bits) == 0
    assert reduction.vote(Reduction.ALL, bits[1:]) == 0x3F8000
    assert reduction.vote(Reduction.ANY, bits[:1]) == 0


@pytest.mark.parametrize("count", [0, 1, 8, 17, 144])
def test_partial_chunks_are_refused(count):
    with pytest.raises(ValueError, match=f"16, 32, .. 128 elements, got {count}"):
        reduction.reduce(Reduction.SUM, np.zeros(count, np.uint32))


def test_kinds_of_the_other_sort_are_refused():
    with pytest.raises(ValueError, match="ANY.* is not a reduction of values"):
        reduction.reduce(Reduction.ANY, A)
    with pytest.raises(ValueError, match="8 is not a reduction"):
        reduction.reduce(8, A)
    with pytest.raises(ValueError, match="SUM.* is not a vote"):
        reduction.vote(Reduction.SUM, np.ones(3, bool))


def test_kinds_are_numbered_as_the_instruction_set_numbers_them():
    assert {kind.name: int(kind) for kind in Reduction} == {kind.name: int(kind) for kind in RedKind}
