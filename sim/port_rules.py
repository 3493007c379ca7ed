"""The rules of an endpoint's port that `sim.port_checker` watches, and how its counters read."""

from __future__ import annotations

from kohakutpu.wording import counted

COUNTER_BITS = 8  # of each rule, saturating

# In the order of the counters, lowest first.
RULES = {
    "in_withdrawn": "whoever sends to the endpoint took back a flit that was offered and not taken",
    "in_changed": "whoever sends to the endpoint changed a flit that was offered and not taken",
    "out_withdrawn": "a flit was offered, not taken, and no longer offered in the next cycle",
    "out_changed": "a flit was offered, not taken, and another one in the next cycle",
    "wedged": "busy for longer than the bound while nothing held the endpoint's own output",
    "wrong_source": "a flit whose source is not the endpoint",
    "completion_unasked": "a completion without an instruction: one was taken twice or retired twice",
    "completion_wrong": "a completion for another source, txn or `last` than those of the oldest instruction",
    "completion_early": "a completion so early that the instruction retired in the cycle that accepted it",
    "reply_unasked": "a CU_CTRL reply without a request",
    "framing": "a data flit without an open burst, one too many or too few, a wrong `last`, or another destination",
    "write_overlap": "a write request while another write of the endpoint is open",
    "overrun": "more instructions in the endpoint than the checker can follow",
}

# What an endpoint still owes: 16 bits each, lowest first.
OWED = ("instructions", "write_data", "burst_data")
OWED_BITS = 16

# What a hang report says of a node besides, lowest first: it takes no flit; its own flit is not taken; txn of the
# oldest instruction and the cycle in which it arrived; signals raised, and code, argument and cycle of the last.
CYCLE_BITS = 32
STATE = {
    "busy": 1, "blocked": 1, "txn": 8, "since": CYCLE_BITS, "signals": 16, "code": 8, "arg": 32, "cycle": CYCLE_BITS,
}  # fmt: skip
VIOLATIONS_WIDTH, OWED_WIDTH, STATE_WIDTH = COUNTER_BITS * len(RULES), OWED_BITS * len(OWED), sum(STATE.values())


def violations(word: int) -> dict[str, int]:
    """The rules that were broken and how often (255 is 255 or more), from a checker's `violations`."""
    counts = {name: word >> (COUNTER_BITS * i) & ((1 << COUNTER_BITS) - 1) for i, name in enumerate(RULES)}
    return {name: count for name, count in counts.items() if count}


def owed(word: int) -> dict[str, int]:
    """What is outstanding, from a checker's `owed`; empty when everything was completed."""
    counts = {name: word >> (OWED_BITS * i) & ((1 << OWED_BITS) - 1) for i, name in enumerate(OWED)}
    return {name: count for name, count in counts.items() if count}


def state(word: int) -> dict[str, int]:
    """The fields of a checker's `state`."""
    fields = {}
    for name, bits in STATE.items():
        fields[name] = word & ((1 << bits) - 1)
        word >>= bits
    return fields


def report(where: str, violations_word: int) -> str:
    """A line for each broken rule of the endpoint called `where`."""
    return "\n".join(
        f"{where}: {name}, {counted(count, 'time')}: {RULES[name]}"
        for name, count in violations(violations_word).items()
    )
