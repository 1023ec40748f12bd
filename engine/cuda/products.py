"""Products with weights: by the library, by our own kernel for a row or two, or in exact tiles."""

from __future__ import annotations

import torch

from engine.kernels.gemv import gemv
from engine.tiles import TiledProduct

GEMV_ROWS = 2  # up to here our own is quicker than cuBLAS
# Rows of a tile in exact mode: 128 is the reference, as cuBLAS splits no sums there.
EXACT_HEIGHTS = (16, 32, 64, 128, 256, 512, 1024, 2048)
EXACT_REFERENCE = 128


class Products:
    """x `[n, in]` times a weight `[out, in]` transposed, plus a bias: a new `[n, out]`.

    With `exact`, a row's bits do not depend on n. Weights must be probed first then.
    """

    def __init__(self, *, exact: bool) -> None:
        self._tiled = TiledProduct(EXACT_HEIGHTS, EXACT_REFERENCE) if exact else None

    def probe(self, weight: torch.Tensor) -> None:
        """Exact mode: find out which tiles treat rows alike."""
        if self._tiled is not None:
            self._tiled.probe(weight)

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, pdl: bool
    ) -> torch.Tensor:
        """`pdl`: the launch may overlap the end of the one before; of one row only."""
        if self._tiled is not None:
            out = self._tiled(x, weight)
            return out if bias is None else out.add_(bias)
        if len(x) <= GEMV_ROWS and x.is_cuda:
            out = x.new_empty(len(x), len(weight))
            gemv(x, weight, out=out, bias=bias, pdl=pdl)
            return out
        if bias is None:
            return torch.mm(x, weight.t())
        return torch.addmm(bias, x, weight.t())
