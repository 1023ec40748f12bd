"""Rows between the residual stream and products that read them, without a launch for their norm.

    product A    residual += tile; values = residual * norm; squares[tile] = sums of squares by row
    product B    (values times its weights) / sqrt(sum of squares / width + epsilon)

Which is RMSNorm, whose division by the row's root may come after the product. Both are
`few_rows_product`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Residual:
    """What a product adds to, instead of storing its result. Owns nothing.

    `values` [n, width], dense, changes in place; `norm` [width] is the weight of the norm that
    follows.
    """

    values: torch.Tensor
    norm: torch.Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class Unnormed:
    """`values` [n, width]: rows times the weight of their norm, rounded. `squares` [parts, padded
    n] float32: sums of the squares of the rows, over parts of their width; valid until the next
    product that adds to a residual on the same stream."""

    values: torch.Tensor
    squares: torch.Tensor
    epsilon: float

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)
