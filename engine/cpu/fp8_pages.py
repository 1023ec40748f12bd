"""Quantises KV pages to FP8, exactly as an FP8 pool's own writer would have stored the same values.

    [layers, 2, kv_heads, page_tokens, head_dim] of float32, bfloat16 or float16
    -> keys as they are, values transposed, one float32 scale per token and head
       (see twolane.engine.kernels.pages.kv_view)

For a sender whose receiver keeps its pages in FP8: half the bytes of bfloat16 are sent. Rounding
loses information, so answers over such pages differ in bits from those over unquantised pages, and
from those of an engine that used FP8 pages from the first token on.
"""

from __future__ import annotations

import torch

from twolane.engine.model_files.fp8 import FP8, LARGEST, SMALLEST_SCALE
from twolane.engine.step import ByteArray


def quantise_pages(
    pages: ByteArray, out: ByteArray, *, dtype: str, kv_heads: int, page_tokens: int, head_dim: int
) -> None:
    """`quantise_tensors` for pages in host memory."""
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

    A row of a head with a non-finite value becomes zeros with a scale of NaN.
    """
    plane = page_tokens * head_dim
    wide = pages.view(getattr(torch, dtype)).view(-1, 2, kv_heads, page_tokens, head_dim).float()
    largest = wide.abs().amax(-1)
    is_sound = largest < torch.inf
    # Divide by a tensor: on a GPU, division by a number multiplies by its reciprocal.
    in_units = largest.clamp(min=SMALLEST_SCALE) / torch.full_like(largest, LARGEST)
    scales = torch.where(is_sound, in_units, torch.nan)
    held = torch.where(is_sound[..., None], wide / scales[..., None], 0.0).to(FP8)
    target = out.view(-1, 2, kv_heads, plane + 4 * page_tokens)
    values = held[:, 1].view(torch.uint8).transpose(-1, -2)
    target[:, 0, :, :plane] = held[:, 0].view(torch.uint8).reshape(-1, kv_heads, plane)
    target[:, 1, :, :plane] = values.reshape(-1, kv_heads, plane)
    target[..., plane:] = scales.view(torch.uint8)
