"""Byte orders: published hashes, round trips at shapes that do not divide, where each element lies."""

import hashlib

import numpy as np
import pytest

from kohakutpu.compiler import layouts
from kohakutpu.compiler.artifact import BufferImage
from kohakutpu.compiler.layouts import ChannelBias, ConvEntry, Entry, Flat, LayoutError, Tile


def halves(shape, seed=11):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


# spec: layout goldens
@pytest.mark.parametrize(
    "layout, digest",
    [
        (Tile(64, 64, 8, 8), "ef1bd757967d7f29a1ecb1733a0e397e"),
        (Tile(32, 24, 4, 2), "a47731e6161b241e6878b1acb2d2376a"),
        (Tile(60, 63, 8, 8), "b437c03e9d42ca37418683d2d2aaa35b"),
    ],
)
def test_tiles_pack_to_the_published_bytes(layout, digest):
    assert hashlib.sha256(layout.pack(halves(layout.shape))).hexdigest()[:32] == digest


ALL = [
    Flat((7, 5)), Flat((16,)), Entry(32, 64, 4, 2), Entry(33, 65, 2, 1), Entry(1, 1, 3, 2), Tile(33, 31, 2, 3),
    Tile(4, 4, 1, 1), ChannelBias(32, 8), ChannelBias(13, 2),
]  # fmt: skip


@pytest.mark.parametrize("layout", ALL, ids=str)
def test_round_trip_size_and_order(layout):
    data = halves(layout.shape).view(np.uint16)
    image = layout.pack(data)
    assert len(image) == layout.bytes == 2 * layout.halves and layout.bytes % 32 == 0
    assert (layout.unpack(image) == data).all()
    words = np.frombuffer(image, "<u2")
    real = layout.order >= 0
    assert (words[real] == data.reshape(-1)[layout.order[real]]).all() and not words[~real].any()
    assert set(layout.order[real]) == set(range(data.size))
    assert layouts.from_dict(layout.to_dict()) == layout
    assert layout.pack(data.view(np.float16)) == image


def test_entry_order_is_the_host_contract():
    """spec: entry = ((tile*NC + chunk)*gt + group)*bc + block; byte = 256*entry + 64*lane + 2*(k mod 32)."""
    layout = Entry(40, 200, 3, 2)
    place = {int(element): 2 * at for at, element in enumerate(layout.order) if element >= 0}
    for r in range(40):
        for k in range(200):
            tile, group, lane = r // 12, r // 4 % 3, r % 4
            chunk, block = k // 64, k // 32 % 2
            entry = ((tile * layout.chunks + chunk) * 3 + group) * 2 + block
            assert place[r * 200 + k] == 256 * entry + 64 * lane + 2 * (k % 32)
    assert layout.offset(2, 1) == 256 * (2 * layout.chunks + 1) * 6


def test_tile_order_is_the_host_contract():
    layout = Tile(33, 31, 2, 3)
    place = {int(element): 2 * at for at, element in enumerate(layout.order) if element >= 0}
    for r in range(33):
        for c in range(31):
            i, g, j, h = r // 8, r // 4 % 2, c // 12, c // 4 % 3
            word = (i * layout.grid[1] + j) * 6 + g * 3 + h
            assert place[r * 31 + c] == 32 * word + 2 * (4 * (r % 4) + c % 4)
    assert layout.offset(3, 2) == 32 * 6 * (3 * 3 + 2)


def test_channel_words_repeat_down_the_rows():
    layout = ChannelBias(6, 2)
    words = np.frombuffer(layout.pack(np.arange(1, 7, dtype=np.uint16)), np.uint16).reshape(-1, 4, 4)
    assert words.tolist() == [[[1, 2, 3, 4]] * 4, [[5, 6, 0, 0]] * 4] and layout.offset(1) == 64


@pytest.mark.parametrize(
    "data, reason",
    [
        (np.zeros((4, 4), np.float32), "expected FP16"),
        (np.zeros((4, 5), np.uint16), r"expected shape \(4, 4\), got \(4, 5\)"),
    ],
)
def test_wrong_data_is_refused(data, reason):
    with pytest.raises(LayoutError, match=reason):
        Tile(4, 4, 1, 1).pack(data)


def test_wrong_images_and_records_are_refused():
    with pytest.raises(LayoutError, match="expected 32 bytes, got 31"):
        Tile(4, 4, 1, 1).unpack(bytes(31))
    with pytest.raises(LayoutError, match="kind 'Conv' is none of Flat, Rows, Entry, Quantised, Shifted, ConvEntry, Tile, ChannelBias"):
        layouts.from_dict({"kind": "Conv"})
    with pytest.raises(LayoutError, match=r"fields \['gm'\] are not"):
        layouts.from_dict({"kind": "Tile", "gm": 1})


def test_batched_images():
    image = BufferImage("x", "in", (2, 3, 5, 7), Tile(5, 7, 1, 1), 6, 2048, 0x4000)
    data = halves(image.shape).view(np.uint16)
    packed = image.pack(data)
    assert len(packed) == image.bytes == 5 * 2048 + 2 * 2 * 32
    assert (image.unpack(packed) == data).all()
    words = np.frombuffer(packed, "<u2")
    for offset in (0, 34, 2048 + 60, 5 * 2048):
        assert words[offset // 2] == data[image.element_at(offset)]
    assert image.element_at(100 * 2048) is None and image.element_at(200) is None and image.element_at(-2) is None
    with pytest.raises(LayoutError, match="x: expected shape"):
        image.pack(data[0])
    with pytest.raises(LayoutError, match="x: expected 10368 bytes"):
        image.unpack(packed[:-1])


def test_a_constant_is_its_pattern_repeated():
    image = BufferImage("c", "constant", (32,), Flat((32,)), 1, 64, 0, fill=0x3C00)
    assert (
        image.contents() == b"\x00\x3c" * 32 and BufferImage("x", "in", (32,), Flat((32,)), 1, 64, 0).contents() is None
    )


@pytest.mark.parametrize("height, width, channels, groups", [(8, 8, 32, 4), (3, 4, 70, 2), (1, 1, 3, 1), (2, 5, 64, 9), (1, 7, 33, 3)])
def test_an_image_lies_inside_zeros(height, width, channels, groups):
    """[block][lane][channel]: lane (h+1)(W+2) + w+1 of a block has its 32 channels of position (h, w)."""
    layout = ConvEntry(height, width, channels, groups)
    image = np.arange(1, height * width * channels + 1, dtype=np.uint16).reshape(height, width, channels)
    packed = layout.pack(image)
    assert len(packed) == layout.bytes and (layout.unpack(packed) == image).all()
    lanes = np.frombuffer(packed, "<u2").reshape(-1, 32)
    per = -(-(height + 2) * (width + 2) // 4) * 4
    wanted = np.zeros_like(lanes)
    for h in range(height):
        for w in range(width):
            for c in range(channels):
                wanted[c // 32 * per + (h + 1) * (width + 2) + w + 1, c % 32] = image[h, w, c]
    assert (lanes == wanted).all() and layout.key == f"conv:1:{groups}"


@pytest.mark.parametrize("height, width, channels, groups", [(8, 8, 32, 4), (3, 4, 70, 2), (1, 1, 3, 1), (2, 5, 64, 9), (9, 9, 96, 16)])
def test_every_tap_of_every_tile_is_inside_the_image(height, width, channels, groups):
    layout = ConvEntry(height, width, channels, groups)
    rows = (height - 1) * (width + 2) + width
    tiles = -(-rows // (4 * groups))
    per = -(-(height + 2) * (width + 2) // 4) * 4
    last = (-(-channels // 32) - 1) * per + 2 * (width + 2) + 2  # the last block's last tap
    assert layout.offset(tiles - 1, 0) == 64 * (tiles - 1) * 4 * groups
    end = layout.offset(tiles - 1, 0) + 64 * (last + 4 * groups)
    assert end <= layout.bytes < end + 64 * max(4, per), "no more than what is read, or the last block is whole"


def test_the_published_plane():
    """spec: 8 x 8 x 32 is 100 lanes of 64 bytes, and what the last tap of 5 tiles of 16 rows reads behind them."""
    assert ConvEntry(8, 8, 32, 4).bytes == 64 * 104
    assert layouts.from_dict(ConvEntry(8, 8, 32, 4).to_dict()) == ConvEntry(8, 8, 32, 4)
