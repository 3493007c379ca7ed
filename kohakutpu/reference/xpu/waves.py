"""What the wave, group, quad and workgroup verbs compute once their members have arrived (spec/xpu.md 1.8).

A wave is `width` lanes; `lanes` holds the arguments of those that are active. The result is every arrived lane's.
"""

from __future__ import annotations

import operator
from functools import partial, reduce
from types import ModuleType

from kohakutpu.xpu.types import Op, Scalar, f32, i64, u32

from . import arithmetic as host
from .arithmetic import Fault, wrap

Lanes = dict[int, tuple]


def _from_lane(lanes: Lanes, width: int, source: int, what: str):
    if not 0 <= source < width:
        raise Fault(f"{what} from lane {source} of a wave of {width}")
    if source not in lanes:
        raise Fault(f"{what} from lane {source}, which is inactive")
    return lanes[source][0]


def _shuffled(form: str, lanes: Lanes, width: int) -> dict:
    """`form`: shuffle, shuffle_xor, shuffle_up, shuffle_down or rotate. Past the wave's edge a lane reads itself."""
    result = {}
    for lane, (_, amount) in lanes.items():
        source = {
            "shuffle": amount, "shuffle_xor": lane ^ amount, "shuffle_up": lane - amount,
            "shuffle_down": lane + amount, "rotate": (lane + amount) % width,
        }[form]  # fmt: skip
        if form in ("shuffle_xor", "shuffle_up", "shuffle_down") and not 0 <= source < width:
            source = lane
        result[lane] = _from_lane(lanes, width, source, form)
    return result


def butterfly(values: dict, width: int, op: Op, floats: ModuleType, reach: int | None = None) -> dict:
    """The XOR butterfly over the full width, or over segments of `reach` lanes; inactive lanes hold the identity."""
    held = [values.get(lane, floats.identity(op)) for lane in range(width)]
    distance = 1
    while distance < (reach or width):
        held = [floats.combine(op, held[lane], held[lane ^ distance]) for lane in range(width)]
        distance *= 2
    return {lane: held[lane] for lane in values}


def _segmented(lanes: Lanes, width: int, op: Op, segment_first: bool, floats: ModuleType) -> dict:
    pairs = {lane: args if segment_first else args[::-1] for lane, args in lanes.items()}
    segments = {segment for segment, _ in pairs.values()}
    if len(segments) > 1:
        raise Fault(f"a segment that differs between lanes: {sorted(segments)}")
    segment = segments.pop()
    if segment < 1 or segment & (segment - 1):
        raise Fault(f"a segment of {segment} lanes, no power of two")
    return butterfly({lane: value for lane, (_, value) in pairs.items()}, width, op, floats, min(segment, width))


_INTEGER = {
    "sum": operator.add, "max": max, "min": min, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "product": operator.mul,
}  # fmt: skip


def _everyone(lanes: Lanes, value) -> dict:
    return dict.fromkeys(lanes, value)


def _prefix(lanes: Lanes, kind: Scalar, form: str) -> dict:
    total, result = {"sum": 0, "product": 1}[form], {}
    for lane in sorted(lanes):
        result[lane] = total
        total = wrap(kind, _INTEGER[form](total, lanes[lane][0]))
    return result


def _quad(form: str, lanes: Lanes, width: int) -> dict:
    result = {}
    for lane in lanes:
        base = lane & ~3
        if form in ("all", "any"):
            votes = [lanes[other][0] if other in lanes else False for other in range(base, base + 4)]
            result[lane] = all(votes) if form == "all" else any(votes)
            continue
        source = {"swap_horizontal": lane ^ 1, "swap_vertical": lane ^ 2, "swap_diagonal": lane ^ 3}.get(form)
        if form == "broadcast":
            if lanes[lane][1] > 3:
                raise Fault(f"quad.broadcast from member {lanes[lane][1]} of 4")
            source = base + lanes[lane][1]
        result[lane] = _from_lane(lanes, width, source, f"quad.{form}")
    return result


def wave(verb: str, width: int, lanes: Lanes, options: tuple, floats: ModuleType = host) -> dict:
    """The results of a wave verb, by lane. `floats` is the module that combines floats."""
    family, _, form = verb.partition(".")
    if family == "quad":
        return _quad(form, lanes, width)
    if verb == "barrier.wave":
        return _everyone(lanes, None)
    if family == "group":
        if form == "reduce":
            return butterfly({lane: value for lane, (value,) in lanes.items()}, width, options[0], floats)
        return _segmented(lanes, width, options[0], True, floats)
    if form == "ballot_sync":
        return _everyone(lanes, sum(1 << lane for lane, (vote,) in lanes.items() if vote))
    if form == "rotate" or form.startswith("shuffle"):
        return _shuffled(form.partition("_sync")[0], lanes, width)
    kind = i64 if form.endswith("_i64") else u32
    word = form.split("_")[1]
    if form.startswith("prefix"):
        return _prefix(lanes, kind, word)
    if form.endswith("_segmented"):
        return _segmented(lanes, width, Op[{"sum": "ADD"}.get(word, word.upper())], False, floats)
    values = {lane: value for lane, (value,) in lanes.items()}
    if form.endswith("_f32"):
        return butterfly(values, width, Op[{"sum": "ADD"}.get(word, word.upper())], floats)
    ordered = [values[lane] for lane in sorted(values)]
    return _everyone(lanes, wrap(kind, reduce(_INTEGER[word], ordered)))


def workgroup(verb: str, kind: Scalar, width: int, values: list, op: Op, floats: ModuleType = host) -> list:
    """The results of workgroup.reduce or workgroup.scan over the workgroup's linear order."""
    word = {Op.ADD: "sum", Op.MAX: "max", Op.MIN: "min"}[op]
    if verb == "workgroup.scan":
        total, results = {Op.ADD: 0, Op.MAX: kind.low, Op.MIN: kind.high}[op], []
        for value in values:
            results.append(total)
            total = wrap(kind, _INTEGER[word](total, value))
        return results
    waves = [values[start : start + width] for start in range(0, len(values), width)]
    if kind is f32:
        partials = [butterfly(dict(enumerate(part)), width, op, floats)[0] for part in waves]
        return [reduce(partial(floats.combine, op), partials)] * len(values)
    return [wrap(kind, reduce(_INTEGER[word], values))] * len(values)
