"""States cycle by cycle: the rules of docs/viewing.md as truth tables, and the counting behind every lane."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohakutpu.noc.trace_tracks import Decode
from kohakutpu.view.lanes import RULES, STATES, TRACKS, Lane, _decide, _run

ON = (0, 1)


def state(kind, *values):
    """The key of the state that values of the tracks of `kind` give (an agent has one more: a program is out)."""
    conditions = RULES[kind](*(np.array([value]) for value in values))
    return STATES[kind][next((at for at, holds in enumerate(conditions) if holds[0]), len(conditions))].key


@pytest.mark.parametrize("array, fill, receive, drain, results", list(product(ON, ON, (0, 2), ON, (0, 16))))
def test_cluster(array, fill, receive, drain, results):
    assert TRACKS["cluster"] == ("array", "fill", "receive", "drain", "results")
    expected = "idle"
    if drain or results:
        expected = "link"
    if fill or receive:
        expected = "operands"
    if array:
        expected = "computing"
    assert state("cluster", array, fill, receive, drain, results) == expected


@pytest.mark.parametrize("decode, receive, drain", list(product(Decode, ON, ON)))
def test_vector(decode, receive, drain):
    expected = "idle"
    if drain or decode == Decode.DRAIN:
        expected = "link"
    if receive or decode == Decode.FILL:
        expected = "operands"
    if decode in (Decode.WORD, Decode.PIPELINE, Decode.FETCH):
        expected = "computing"
    assert state("vector", decode, receive, drain) == expected


@pytest.mark.parametrize(
    "read, write, expected", [(0, 0, "idle"), (2, 0, "reading"), (0, 1, "writing"), (3, 1, "both")]
)
def test_memory_port(read, write, expected):
    assert state("memory", read, write) == expected


@pytest.mark.parametrize(
    "run, credit, outstanding, expected",
    [(1, 3, 1, "dispatching"), (1, 0, 1, "credit"), (0, 3, 1, "units"), (0, 3, 0, "idle"), (1, 3, 0, "dispatching")],
)
def test_agent(run, credit, outstanding, expected):
    assert state("agent", run, credit, outstanding) == expected


@pytest.mark.parametrize(
    "clusters, vectors, agent, expected",
    [
        ("c", "", "units", "array"), ("i", "c", "idle", "vector"), ("o", "i", "dispatching", "operands"),
        ("l", "i", "units", "link"), ("i", "i", "dispatching", "dispatching"), ("i", "i", "credit", "dispatching"),
        ("i", "i", "units", "transit"), ("i", "i", "idle", "idle"), ("", "", "idle", "idle"),
        ("co", "", "units", "array"), ("coo", "", "units", "operands"), ("oo", "cc", "units", "vector"),
        ("l", "ol", "units", "link"), ("c", "c", "units", "array"), ("ciiiiii", "l", "units", "array"),
    ],
)  # fmt: skip
def test_the_machine_does_what_most_units_do(clusters, vectors, agent, expected):
    numbers = {"c": 0, "o": 1, "l": 2, "i": 3}
    agents = [one.key for one in STATES["agent"]]
    lanes = [[np.array([numbers[letter]]) for letter in letters] for letters in (clusters, vectors)]
    conditions = _run(*lanes, np.array([agents.index(agent)]))
    found = next((at for at, holds in enumerate(conditions) if holds[0]), len(conditions))
    assert STATES["run"][found].key == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.data())
def test_a_lane_counts_every_cycle(states, data):
    """Against the list of states by cycle itself."""
    states = np.array(states)
    lane = _decide("x", "cluster", np.arange(len(states)), [states == 0, states == 1, states == 2], len(states))
    assert len(lane.starts) == 1 + np.count_nonzero(np.diff(states))
    bounds = np.array(sorted(data.draw(st.lists(st.integers(0, len(states)), min_size=2, max_size=9))))
    counted = [[int((states[a:b] == s).sum()) for a, b in zip(bounds, bounds[1:], strict=False)] for s in range(4)]
    assert lane.between(bounds).tolist() == counted


def test_a_lane_of_one_state():
    lane = Lane("x", "memory", np.array([0]), np.array([3]), 10)
    assert lane.between(np.array([0, 4, 10])).tolist() == [[0, 0], [0, 0], [0, 0], [4, 6]]
