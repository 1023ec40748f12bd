"""Matrix products whose rows do not depend on the rest of the batch.

A library's product of `[m, k]` by `[k, n]` may sum in a different order for a different m, so a
row's bits can depend on the number of rows. The library chooses a kernel by shape, dtype and thread
count, not by value: heights that agree once for a row always agree. Each weight's heights are
therefore probed when it is loaded, and only those that agree with a reference are used.

    37 rows, heights {4, 8, 16, 32}:   |---- 32 ----|-- 8 (5 rows, 3 of padding) --|

Where a tile takes as long whatever its height, since reading the weight takes longest, a rest of
rows is one tile: 150 rows of a GPU are one of 160, not 128, 16 and 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

REFERENCE_ROWS = 16
HEIGHTS = (4, 8, REFERENCE_ROWS, 32, 64, 128, 256)
_PROBE_SEED = 20


class Product(Protocol):
    """x `[m, k]` times a weight `[n, k]` transposed: a new `[m, n]`."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...


def plain_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The library's own product: fastest, but its rows may depend on m."""
    return torch.mm(x, weight.t())


class TiledProduct:
    """Products in tiles of probed heights: the bits of a row depend only on that row.

    Valid for the thread count and build that the probe ran under.
    """

    def __init__(
        self,
        heights: tuple[int, ...] = HEIGHTS,
        reference_rows: int = REFERENCE_ROWS,
        *,
        one_tile_rows: int = 0,
    ) -> None:
        """`one_tile_rows`: a rest of at most so many rows is one tile."""
        self._tried = heights
        self._reference_rows = reference_rows
        self._one_tile_rows = one_tile_rows
        self._heights: dict[tuple[int, ...], tuple[int, ...]] = {}  # by weight shape, tallest first
        self._takes_few: set[tuple[int, ...]] = set()  # weight shapes

    def probe(
        self,
        weight: torch.Tensor,
        few: Product | None = None,
        few_heights: tuple[int, ...] = (),
    ) -> None:
        """Find the heights that agree for weights of this shape and dtype; does nothing on `meta`.

        `few`: another product, of at most `few_heights[-1]` rows, which is built once for up to
        each of these. If all its builds agree with each other and with tiles at least as tall as
        the library's own reference has, they and those tiles are used: see `takes_few`.
        """
        shape = tuple(weight.shape)
        if shape in self._heights or weight.is_meta:
            return
        source = torch.Generator().manual_seed(_PROBE_SEED)
        x = torch.randn(max(self._tried), shape[1], generator=source).to(weight)

        def library(rows: torch.Tensor) -> torch.Tensor:
            return torch.mm(rows, weight.t())

        heights = agreeing_heights(library, x, self._tried, self._reference_rows)
        if few is not None:
            expected = _by(lambda rows: few(rows, weight), x, few_heights[-1])
            builds = heights_like(expected, lambda rows: few(rows, weight), x, few_heights)
            tiles = heights_like(expected, library, x, self._tried)
            if len(builds) == len(few_heights) and max(tiles, default=0) >= max(heights):
                heights = tiles
                self._takes_few.add(shape)
        self._heights[shape] = tuple(sorted(heights, reverse=True))

    def takes_few(self, weight: torch.Tensor) -> bool:
        """Whether the other product may be used for its few rows. On `meta` it may, so that a dry
        run finds its builds."""
        return weight.is_meta or tuple(weight.shape) in self._takes_few

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if weight.is_meta:
            return x.new_empty(len(x), len(weight))
        m = len(x)
        tiles = cover(m, self._heights[tuple(weight.shape)], self._one_tile_rows)
        padded = sum(tiles)
        if padded > m:
            x = torch.cat([x, x.new_zeros(padded - m, x.shape[1])])
        out = x.new_empty(padded, len(weight))
        at = 0
        for height in tiles:
            torch.mm(x[at : at + height], weight.t(), out=out[at : at + height])
            at += height
        return out[:m]


def cover(rows: int, heights: Sequence[int], one_tile_rows: int) -> list[int]:
    """Heights of tiles that together are at least `rows` high; `heights`: those allowed, tallest
    first."""
    tiles: list[int] = []
    left = rows
    while left > 0:
        enough = min((height for height in heights if height >= left), default=None)
        if enough is not None and (enough <= one_tile_rows or enough - left < heights[-1]):
            tiles.append(enough)
        else:
            tiles.append(next(height for height in heights if height <= left))
        left -= tiles[-1]
    return tiles


class _RowFunction(Protocol):
    def __call__(self, rows: torch.Tensor) -> torch.Tensor: ...


def agreeing_heights(
    function: _RowFunction,
    x: torch.Tensor,
    heights: tuple[int, ...],
    reference_rows: int = REFERENCE_ROWS,
) -> list[int]:
    """The heights for which `function`, applied to `x` in slices of that height, gives every row
    bit for bit what it gives with slices of `reference_rows`.

    A height that does not divide len(x) is tested on the rows it covers.
    """
    return heights_like(_by(function, x, reference_rows), function, x, heights)


def heights_like(
    expected: torch.Tensor, function: _RowFunction, x: torch.Tensor, heights: tuple[int, ...]
) -> list[int]:
    """The heights for which `function`, applied to `x` in slices of that height, gives the
    `expected` rows bit for bit: those of them that whole slices cover."""
    agreed = []
    for height in heights:
        found = _by(function, x, height)
        both = min(len(found), len(expected))
        if torch.equal(found[:both], expected[:both]):
            agreed.append(height)
    return agreed


def _by(function: _RowFunction, x: torch.Tensor, height: int) -> torch.Tensor:
    whole = len(x) // height * height
    return torch.cat([function(x[i : i + height].clone()) for i in range(0, whole, height)])
