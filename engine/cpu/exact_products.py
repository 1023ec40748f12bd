"""Matrix products whose rows do not depend on the rest of the batch.

A library's product of `[m, k]` by `[k, n]` may sum in a different order for a different m, so a
row's bits can depend on the number of rows. The library chooses a kernel by shape, dtype and thread
count, not by value: heights that agree once for a row always agree. Each weight's heights are
therefore probed when it is loaded, and only those that agree with a reference are used.

    37 rows, heights {4, 8, 16, 32}:   |---- 32 ----|-- 8 (5 rows, 3 of padding) --|
"""

from __future__ import annotations

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
        self, heights: tuple[int, ...] = HEIGHTS, reference_rows: int = REFERENCE_ROWS
    ) -> None:
        self._tried = heights
        self._reference_rows = reference_rows
        self._heights: dict[tuple[int, ...], tuple[int, ...]] = {}  # by weight shape, tallest first

    def probe(self, weight: torch.Tensor) -> None:
        """Find the heights that agree for weights of this shape and dtype; does nothing on
        `meta`."""
        shape = tuple(weight.shape)
        if shape in self._heights or weight.is_meta:
            return
        source = torch.Generator().manual_seed(_PROBE_SEED)
        x = torch.randn(max(self._tried), shape[1], generator=source).to(weight)
        agreed = agreeing_heights(
            lambda rows: torch.mm(rows, weight.t()), x, self._tried, self._reference_rows
        )
        self._heights[shape] = tuple(sorted(agreed, reverse=True))

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if weight.is_meta:
            return x.new_empty(len(x), len(weight))
        heights = self._heights[tuple(weight.shape)]
        m, least = len(x), heights[-1]
        padded = -(-m // least) * least
        if padded > m:
            x = torch.cat([x, x.new_zeros(padded - m, x.shape[1])])
        out = x.new_empty(padded, len(weight))
        at = 0
        for height in heights:
            while padded - at >= height:
                torch.mm(x[at : at + height], weight.t(), out=out[at : at + height])
                at += height
        return out[:m]


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
    reference = _by(function, x, reference_rows)
    agreed = []
    for height in heights:
        found = _by(function, x, height)
        if torch.equal(found, reference[: len(found)]):
            agreed.append(height)
    return agreed


def _by(function: _RowFunction, x: torch.Tensor, height: int) -> torch.Tensor:
    whole = len(x) // height * height
    return torch.cat([function(x[i : i + height].clone()) for i in range(0, whole, height)])
