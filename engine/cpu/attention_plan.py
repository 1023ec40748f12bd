"""Which query tiles are paired with which key tiles: planned once a step, used by every layer.

    keys        0        64       128      192
    row's pages |--------|--------|--------|-- end        a key tile: 64 positions, absolute
    query tile      [ t tokens x group heads ]            paired with the tiles that it may see

Only these pairs are computed, so no row pays for the length of another. A query's pairs, and their
order, depend only on its position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from twolane.engine.cpu.batch import IndexArray, PackedRows
from twolane.engine.cpu.pool import TILE_TOKENS, KVPool

BLOCK_BYTES = 4 << 20  # keys, values and scores processed at a time: fits a core's cache


@dataclass(frozen=True, slots=True)
class PairBlock:
    """Some query tiles with all of their pairs: q tiles of t tokens each, p pairs."""

    tokens: torch.Tensor  # [q * t] index of the packed token; a short tile repeats its last
    tile_of: torch.Tensor  # [p] the query tile of each pair, ascending
    units: (
        torch.Tensor
    )  # [2, p, kv_heads, units a tile] rows of `pool.units` in layer 0: keys, values
    edges: torch.Tensor  # [e] the pairs seen only in part: at a row's end, at a window's start
    bias: torch.Tensor  # [e, 1, t, 1, TILE_TOKENS]: 0 where the query sees the key, else -inf
    tile_tokens: int


@dataclass(frozen=True, slots=True)
class _QueryTiles:
    row: IndexArray  # [q]
    first: IndexArray  # [q] position of the tile's first token
    offsets: IndexArray  # [q, t] index into the row's new tokens


def plan_attention(
    packed: PackedRows, pool: KVPool, *, window: int, heights: tuple[int, int], group: int
) -> list[PairBlock]:
    """Blocks that cover every token once. `heights`: tokens of a low and of a tall query tile.

    A row with few new tokens is cut into low tiles, one with many into tall ones.
    """
    low, tall = heights
    is_tall = packed.lengths * 2 > tall
    blocks: list[PairBlock] = []
    for height, chosen in ((low, ~is_tall), (tall, is_tall)):
        rows = np.flatnonzero(chosen)
        if rows.size:
            tiles = _cut(packed, rows, height)
            floats = 2 * pool.shape.head_dim + 2 * height * group
            pair_bytes = 4 * TILE_TOKENS * pool.shape.kv_heads * floats
            blocks += _pair_up(packed, pool, tiles, window, max(1, BLOCK_BYTES // pair_bytes))
    return blocks


def _cut(packed: PackedRows, rows: IndexArray, height: int) -> _QueryTiles:
    lengths = packed.lengths[rows]
    counts = -(-lengths // height)
    row = np.repeat(rows, counts)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    offsets = (nth * height)[:, None] + np.arange(height)
    offsets = np.minimum(offsets, packed.lengths[row][:, None] - 1)
    return _QueryTiles(row, packed.starts[row] + nth * height, offsets)


def _pair_up(
    packed: PackedRows, pool: KVPool, tiles: _QueryTiles, window: int, pairs_a_block: int
) -> list[PairBlock]:
    positions = packed.starts[tiles.row][:, None] + tiles.offsets
    lowest = np.maximum(tiles.first - window + 1, 0) if window else np.zeros_like(tiles.first)
    first_key = lowest // TILE_TOKENS
    counts = positions[:, -1] // TILE_TOKENS - first_key + 1
    ends = np.cumsum(counts)
    blocks, at = [], 0
    while at < len(counts):
        done = int(ends[at - 1]) if at else 0
        stop = max(at + 1, int(np.searchsorted(ends, done + pairs_a_block, side="right")))
        some = slice(at, stop)
        part = _QueryTiles(tiles.row[some], tiles.first[some], tiles.offsets[some])
        blocks.append(
            _block(packed, pool, part, positions[some], first_key[some], counts[some], window)
        )
        at = stop
    return blocks


def _block(
    packed: PackedRows,
    pool: KVPool,
    tiles: _QueryTiles,
    positions: IndexArray,
    first_key: IndexArray,
    counts: IndexArray,
    window: int,
) -> PairBlock:
    tile_of = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(tile_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    key_tile = first_key[tile_of] + nth
    is_edge = (key_tile + 1) * TILE_TOKENS - 1 > tiles.first[tile_of]
    if window:
        is_edge |= key_tile * TILE_TOKENS <= positions[tile_of, -1] - window
    edges = np.flatnonzero(is_edge)
    keys = (key_tile[edges] * TILE_TOKENS)[:, None, None] + np.arange(TILE_TOKENS)
    queries = positions[tile_of[edges]][:, :, None]
    hidden: npt.NDArray[np.bool_] = keys > queries
    if window:
        hidden |= keys <= queries - window
    bias = np.zeros(hidden.shape, np.float32)
    bias[hidden] = -np.inf
    tokens = packed.offsets[tiles.row][:, None] + tiles.offsets
    return PairBlock(
        tokens=torch.from_numpy(tokens.reshape(-1)),
        tile_of=torch.from_numpy(tile_of),
        units=torch.from_numpy(_units(packed, pool, tiles.row[tile_of], key_tile)),
        edges=torch.from_numpy(edges),
        bias=torch.from_numpy(bias)[:, None, :, None, :],
        tile_tokens=tokens.shape[1],
    )


def _units(packed: PackedRows, pool: KVPool, row: IndexArray, key_tile: IndexArray) -> IndexArray:
    """`[2, p, kv_heads, units a tile]`: where layer 0 keeps each pair's keys and values.

    Units past the row's last page repeat its last unit: finite values, which get the weight 0.
    """
    shape, units_a_page = pool.shape, pool.units_a_page
    units_a_tile = TILE_TOKENS // pool.unit_tokens
    unit = (key_tile * units_a_tile)[:, None] + np.arange(units_a_tile)
    last = (packed.ends[row] - 1) // pool.unit_tokens
    unit = np.minimum(unit, last[:, None])
    page = packed.pages[packed.page_offsets[row][:, None] + unit // units_a_page]
    plane = shape.kv_heads * units_a_page
    base = pool.places(page) * (2 * shape.layers * plane) + unit % units_a_page
    keys = base[:, None, :] + (np.arange(shape.kv_heads) * units_a_page)[:, None]
    return np.stack([keys, keys + plane])
