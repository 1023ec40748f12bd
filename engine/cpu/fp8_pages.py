"""Wide KV pages into FP8 ones: what the FP8 pool's own writer would have stored of the same values.

    [layers, 2, kv_heads, page_tokens, head_dim] of float32, bfloat16 or float16
    -> keys as they lie, values turned, a float32 scale a token and head
       (see twolane.engine.kernels.pages.kv_view)

For a sender whose receiver keeps its pages in FP8: half the bytes of bfloat16 travel. What is
rounded away does not come back, so answers over such pages are not bit for bit those over wide
ones, nor those of an engine that had read FP8 pages from the first token on.
"""

from __future__ import annotations

import torch

from twolane.engine.model_files.fp8 import FP8, LARGEST, SMALLEST_SCALE
from twolane.engine.step import ByteArray


def quantise_pages(
    pages: ByteArray, out: ByteArray, *, dtype: str, kv_heads: int, page_tokens: int, head_dim: int
) -> None:
    """`quantise_tensors` of pages in host memory."""
    shape = {"kv_heads": kv_heads, "page_tokens": page_tokens, "head_dim": head_dim}
    quantise_tensors(torch.from_numpy(pages), torch.from_numpy(out), dtype=dtype, **shape)


def quantise_tensors(
    pages: torch.Tensor,
    out: torch.Tensor,
    *,
    dtype: str,
    kv_heads: int,
    page_tokens: int,
    head_dim: int,
) -> None:
    """Fill `out` [n, bytes of an FP8 page] from `pages` [n, bytes of a page of dtype]: both uint8,
    dense, on one device.

    A row of a head that is not all finite becomes zeros under a scale that is NaN.
    """
    plane = page_tokens * head_dim
    wide = pages.view(getattr(torch, dtype)).view(-1, 2, kv_heads, page_tokens, head_dim).float()
    largest = wide.abs().amax(-1)
    is_sound = largest < torch.inf
    # By a tensor: a card divides by a number as it multiplies by its reciprocal.
    in_units = largest.clamp(min=SMALLEST_SCALE) / torch.full_like(largest, LARGEST)
    scales = torch.where(is_sound, in_units, torch.nan)
    held = torch.where(is_sound[..., None], wide / scales[..., None], 0.0).to(FP8)
    target = out.view(-1, 2, kv_heads, plane + 4 * page_tokens)
    values = held[:, 1].view(torch.uint8).transpose(-1, -2)
    target[:, 0, :, :plane] = held[:, 0].view(torch.uint8).reshape(-1, kv_heads, plane)
    target[:, 1, :, :plane] = values.reshape(-1, kv_heads, plane)
    target[..., plane:] = scales.view(torch.uint8)
