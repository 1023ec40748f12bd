"""FP8 pages made of wide ones on a card, beside the CPU's and beside what the pool's kernel writes.

Expected: the CPU's bytes, all of them; of the kernel's, whose division is not rounded as IEEE
wants, at most one in a thousand off by one step of e4m3.
"""

import pytest

pytest.importorskip("triton")

import torch

from twolane.engine.cpu.fp8_pages import quantise_tensors
from twolane.engine.kernels.pages.kv_view import KVView, allocate_view
from twolane.engine.kernels.pages.rope_write import rope_write
from twolane.engine.model_files.fp8 import FP8
from twolane.engine.model_files.rope import Rope

pytestmark = pytest.mark.gpu

LAYERS, KV_HEADS, DIM, PAGE_TOKENS, N_PAGES = 2, 8, 128, 64, 8
WIDE = [torch.float32, torch.bfloat16]


def pool(dtype: torch.dtype, device: str) -> KVView:
    shape = {"layers": LAYERS, "kv_heads": KV_HEADS, "head_dim": DIM}
    return allocate_view(N_PAGES, dtype=dtype, device=device, **shape)


def quantised(view: KVView) -> KVView:
    out = pool(FP8, str(view.values.device))
    quantise_tensors(
        view.values.view(torch.uint8).view(N_PAGES, -1),
        out.values.view(torch.uint8).view(N_PAGES, -1),
        dtype=str(view.values.dtype).removeprefix("torch."),
        kv_heads=KV_HEADS,
        page_tokens=PAGE_TOKENS,
        head_dim=DIM,
    )
    return out


@pytest.mark.parametrize("dtype", WIDE)
def test_a_card_makes_the_bytes_that_a_cpu_makes(dtype: torch.dtype) -> None:
    there, here = pool(dtype, "cuda"), pool(dtype, "cpu")
    here.planes().copy_(torch.randn(here.planes().shape) * 3)
    there.planes().copy_(here.planes())
    made = quantised(there).values.view(torch.uint8).cpu()
    assert torch.equal(made, quantised(here).values.view(torch.uint8))


def test_pages_made_are_those_that_the_kernel_writes() -> None:
    n = N_PAGES * PAGE_TOKENS
    wide, small = pool(torch.float32, "cuda"), pool(FP8, "cuda")
    qkv = torch.randn(n, 3 * KV_HEADS * DIM, device="cuda")
    at = torch.arange(n, device="cuda")
    cos, sin = (torch.from_numpy(t).cuda() for t in Rope(10000.0).tables(n, DIM))
    queries = torch.empty(n, KV_HEADS, DIM, device="cuda")
    for view in (wide, small):
        for layer in range(LAYERS):
            rope_write(qkv, view, layer, at, at, cos, sin, queries=queries)
    made = quantised(wide)
    torch.testing.assert_close(made.plane_scales(), small.plane_scales(), rtol=1e-6, atol=0)
    for ours, theirs in zip(made.parts(), small.parts(), strict=True):
        differs = ours.view(torch.uint8).int() - theirs.view(torch.uint8).int()
        assert differs.abs().max() <= 1
        assert (differs != 0).float().mean() < 1e-3
