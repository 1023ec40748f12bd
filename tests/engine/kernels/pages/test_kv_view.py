"""What the kernels' view of a pool says about the pool."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from twolane.engine.kernels.pages.kv_view import KVView
from twolane.engine.model_files.fp8 import FP8

INT32S = 2**31


def pool_of(n_bytes: int, dtype: torch.dtype, head_dim: int) -> KVView:
    """A pool of about so many bytes, without memory."""
    page = KVView(
        values=torch.empty(0, dtype=dtype, device="meta"), layers=32, kv_heads=8, head_dim=head_dim
    ).page_values
    n_pages = n_bytes // (page * dtype.itemsize)
    values = torch.empty(n_pages * page, dtype=dtype, device="meta")
    return KVView(values=values, layers=32, kv_heads=8, head_dim=head_dim)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16])
@pytest.mark.parametrize("gib", [60, 120, 127, 129, 140, 170, 250])
def test_rows_of_descriptors_are_numbered_by_int32s(
    gib: int, dtype: torch.dtype, head_dim: int
) -> None:
    view = pool_of(gib << 30, dtype, head_dim)
    planes = view.n_pages * view.layers * 2 * view.kv_heads
    last_rows = [(planes - 1) * (view.plane_values // head_dim)]
    if view.has_scales:  # values of such a pool are transposed
        last_rows.append((planes - 1) * (view.plane_values // view.page_tokens))
    if view.has_descriptor:
        assert max(last_rows) < INT32S
    if gib < 128:
        assert view.has_descriptor
