"""FP8 (e4m3) rows with one float32 scale each: weights per output, activations per token.

row = values * scale        scale = the row's maximum / 448, so that nothing overflows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # of e4m3
SMALLEST_SCALE = 1e-12  # for a row of zeros, whose scale must not be 0


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """`values` [rows, width] e4m3, dense; `scales` [rows] float32. Owns neither."""

    values: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def empty(cls, rows: int, width: int, *, device: torch.device | None = None) -> Fp8Rows:
        """Uninitialised; on torch's default device if none is given."""
        values = torch.empty(rows, width, dtype=FP8, device=device)
        return cls(values, torch.empty(rows, dtype=torch.float32, device=device))

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    def __len__(self) -> int:
        return len(self.values)

    def dim(self) -> int:
        return 2

    def split(self, sizes: Sequence[int]) -> list[Fp8Rows]:
        """Views of runs of rows."""
        parts = zip(
            torch.split(self.values, list(sizes)),
            torch.split(self.scales, list(sizes)),
            strict=True,
        )
        return [Fp8Rows(values, scales) for values, scales in parts]

    def copy_(self, source: torch.Tensor | Fp8Rows) -> None:
        """Copy rows of the same shape; rows that are not FP8 are quantised."""
        if isinstance(source, Fp8Rows):
            self.values.copy_(source.values)
            self.scales.copy_(source.scales)
            return
        values = source.to(self.values.device).float()
        scales = (values.abs().amax(-1) / LARGEST).clamp(min=SMALLEST_SCALE)
        self.scales.copy_(scales)
        self.values.copy_((values / scales[:, None]).to(FP8))

    def dequantise(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The dequantised rows, a new `[rows, width]`."""
        return (self.values.float() * self.scales[:, None]).to(dtype)


Matrix = torch.Tensor | Fp8Rows


@dataclass(frozen=True, slots=True)
class Unscaled:
    """A product of FP8 rows and an FP8 weight before its scales: the reader of `values` `[n, out]`
    multiplies row i by `row_scales[i]` and output j by `scales[j]`."""

    values: torch.Tensor
    row_scales: torch.Tensor
    scales: torch.Tensor

    def index_select(self, dim: int, index: torch.Tensor) -> Unscaled:
        """Some of the rows: `dim` is 0, as of a tensor."""
        assert dim == 0
        values, row_scales = (t.index_select(0, index) for t in (self.values, self.row_scales))
        return Unscaled(values, row_scales, self.scales)
