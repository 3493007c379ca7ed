"""Methods of cooperative matrices (spec/xpu.md 1.9): their types. What they mean is `reference.xpu.tiles`.

A tile is a value of the wave. A verb that reads memory is a wave rendezvous.
"""

from __future__ import annotations

from .conversions import assign, index, refuse
from .types import MEMORY, VOID, SliceType, TileType, Use, WaveVectorType, f32, i8, i32, u32
from .verb_table import argument, declare


def _tile(value, at) -> TileType:
    if not isinstance(value.type, TileType):
        refuse(f"{value.type} where a cooperative matrix is taken", at)
    return value.type


def _splat(arguments, at):
    tile = _tile(arguments[0], at)
    return [arguments[0], assign(arguments[1], tile.element, "splat")], tile


def _placed(arguments, at):
    tile, memory, *numbers = arguments
    kind = _tile(tile, at)
    if not isinstance(memory.type, MEMORY) or memory.type.element != kind.element:
        refuse(f"{memory.type} beside {kind}: a buffer or Shared of exactly {kind.element} is taken", at)
    return [tile, memory, *(index(value, "offset, layout and stride") for value in numbers)], kind


def _stored(arguments, at):
    return _placed(arguments, at)[0], VOID


def _mma(arguments, at):
    total, left, right = (_tile(value, at) for value in arguments)
    kinds = {t.element.kind for t in (total, left, right)}
    uses = (total.use, left.use, right.use)
    if len(kinds) > 1:
        refuse(f"mma of {left} and {right} into {total}: integers and floats do not mix", at)
    if (left.rows, right.cols, left.cols) != (total.rows, total.cols, right.rows):
        refuse(f"mma of {left} and {right} into {total}: the shapes do not chain", at)
    if uses != (Use.ACCUMULATOR, Use.A, Use.B):
        refuse(f"mma of {left} and {right} into {total}: uses A and B into an accumulator are taken", at)
    return arguments, total


def _elements(arguments, at):
    _tile(arguments[0], at)
    return arguments, u32


def _get(arguments, at):
    return [arguments[0], index(arguments[1])], _tile(arguments[0], at).element


def _set(arguments, at):
    tile = _tile(arguments[0], at)
    return [arguments[0], index(arguments[1]), assign(arguments[2], tile.element, "an element")], tile


def _mapped(arguments, at):
    _tile(arguments[0], at)
    return [arguments[0], index(arguments[1])], u32


def _factors(tile: TileType, rows, cols, at) -> None:
    if not isinstance(rows.type, SliceType) or rows.type.element != f32:
        refuse("row factors are a slice of Shared[f32]: memory.at(offset)", at)
    _columns(tile, cols, f32, at)


def _columns(tile: TileType, cols, element, at) -> None:
    if not isinstance(cols.type, WaveVectorType) or cols.type != WaveVectorType(element, tile.cols):
        refuse(f"column factors are a WaveVector[{element}, {tile.cols}]: of_slice, broadcast or of_lane", at)


def _accumulator(tile: TileType, value, element, at) -> TileType:
    into = _tile(value, at)
    if (into.rows, into.cols, into.element) != (tile.rows, tile.cols, element):
        refuse(f"{into} beside {tile}: a tile of {element} of the same shape is taken", at)
    return into


def _scaled(arguments, at):
    tile = _tile(arguments[0], at)
    into = _accumulator(tile, arguments[1], f32, at)
    for rows, cols in zip(arguments[2::2], arguments[3::2], strict=True):
        _factors(tile, rows, cols, at)
    return arguments, into


def _rank1(arguments, at):
    tile = _tile(arguments[0], at)
    if tile.element != f32:
        refuse(f"rank1_accum of {tile}; it takes a tile of f32", at)
    _factors(tile, arguments[1], arguments[2], at)
    return arguments, tile


def _scaled_i32(arguments, at):
    tile = _tile(arguments[0], at)
    into = _accumulator(tile, arguments[1], i32, at)
    if tile.element != i32:
        refuse(f"scaled_accum_i32 of {tile}; it takes a tile of i32", at)
    _columns(tile, arguments[2], i32, at)
    return arguments, into


def _from_words(arguments, at):
    tile = _tile(arguments[0], at)
    if tile.element != i8 or (tile.rows, tile.cols) != (16, 16) or tile.use == Use.ACCUMULATOR:
        refuse(f"from_words into {tile}; it makes int8 operands of 16 x 16 only", at)
    return [arguments[0], *(argument(value, u32, at) for value in arguments[1:])], tile


declare("tile.splat", (2,), _splat, width=True, changes=0)
declare("tile.load", (5,), _placed, rendezvous="wave", width=True, changes=0)
declare("tile.store", (5,), _stored, width=True)
declare("tile.mma", (3,), _mma, width=True, changes=0)
declare("tile.elements", (1,), _elements, width=True)
declare("tile.get", (2,), _get, width=True)
declare("tile.set", (3,), _set, width=True, changes=0)
declare("tile.row", (2,), _mapped, width=True)
declare("tile.col", (2,), _mapped, width=True)
declare("tile.scaled_accum_into", (4,), _scaled, rendezvous="wave", width=True, changes=1)
declare("tile.scaled_accum_into2", (6,), _scaled, rendezvous="wave", width=True, changes=1)
declare("tile.rank1_accum", (3,), _rank1, rendezvous="wave", width=True, changes=0)
declare("tile.scaled_accum_i32", (3,), _scaled_i32, rendezvous="wave", width=True, changes=1)
declare("tile.from_words", (5,), _from_words, rendezvous="wave", width=True, changes=0)
