"""FP8 pages made of wide ones, beside those that the FP8 pool's own kernel writes."""

from typing import Any

import pytest

pytest.importorskip("triton")

import numpy as np
import torch

from twolane.engine.cpu.fp8_pages import quantise_pages
from twolane.engine.kernels.pages.kv_view import KVView, allocate_view
from twolane.engine.kernels.pages.rope_write import rope_write
from twolane.engine.model_files.fp8 import FP8
from twolane.engine.model_files.rope import Rope
from twolane.engine.step import ByteArray

SHAPE: dict[str, Any] = {"layers": 2, "kv_heads": 2, "head_dim": 16}


def pages_of(view: KVView) -> ByteArray:
    """Its pool as transfers see it."""
    return np.asarray(view.values.view(torch.uint8).view(view.n_pages, -1), dtype=np.uint8)


def quantised(view: KVView, dtype: str) -> KVView:
    out = allocate_view(view.n_pages, dtype=FP8, device="cpu", **SHAPE)
    facts = {"kv_heads": view.kv_heads, "page_tokens": 64, "head_dim": view.head_dim}
    quantise_pages(pages_of(view), pages_of(out), dtype=dtype, **facts)
    return out


def test_pages_made_are_byte_for_byte_those_that_the_kernel_writes() -> None:
    wide = allocate_view(2, dtype=torch.float32, device="cpu", **SHAPE)
    small = allocate_view(2, dtype=FP8, device="cpu", **SHAPE)
    qkv = torch.randn(128, (4 + 2 * 2) * 16) * torch.logspace(-3, 3, 128)[:, None]
    qkv[7, 64:] = 0.0
    qkv[9, 70] = torch.inf
    qkv[11, -1] = torch.nan
    positions = torch.arange(128)
    cos, sin = (torch.from_numpy(t) for t in Rope(10000.0).tables(128, 16))
    queries = torch.empty(128, 4, 16)
    for view in (wide, small):
        for layer in range(2):
            rope_write(qkv, view, layer, positions, positions, cos, sin, queries=queries)
    made = quantised(wide, "float32")
    assert torch.equal(made.plane_scales().isnan(), small.plane_scales().isnan())
    assert made.plane_scales().isnan().sum() == 2 * 2, "in each layer, a row of keys and of values"
    assert (pages_of(made) == pages_of(small)).all()


def test_what_is_read_back_of_bfloat16_pages_is_near_what_was_there() -> None:
    wide = allocate_view(3, dtype=torch.bfloat16, device="cpu", **SHAPE)
    wide.planes().copy_(torch.randn(wide.planes().shape))
    made = quantised(wide, "bfloat16")
    assert pages_of(made).nbytes == pages_of(wide).nbytes * (16 + 4) // 32
    scales = made.plane_scales()
    for kv, held in enumerate(made.parts()):
        read = held.float() * scales[:, :, kv, :, :, None]
        there = wide.planes()[:, :, kv].float()
        worst = there.abs().amax(-1, keepdim=True) / 448 * 16  # half a step of e4m3 at its largest
        assert ((read - there).abs() <= 1.0001 * worst).all()
