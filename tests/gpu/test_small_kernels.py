"""The other kernels on a card against float64, and the sampler against the CPU's bits."""

from typing import Any

import pytest

pytest.importorskip("triton")

import numpy as np
import torch

from twolane.engine.cpu.philox import token_bits, uniform
from twolane.engine.kernels.pages.kv_view import allocate_view
from twolane.engine.kernels.pages.page_copy import copy_pages
from twolane.engine.kernels.pages.rope_write import reference_rope, rope_write
from twolane.engine.kernels.rows.norm import reference_rms_norm, rms_norm
from twolane.engine.kernels.rows.sample import sample
from twolane.engine.kernels.rows.silu import reference_silu_mul, silu_mul
from twolane.engine.kernels.testing import relative_error
from twolane.engine.model_files.fp8 import FP8
from twolane.engine.model_files.rope import Rope

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
BOUND = 4e-3  # one rounding to bf16


def random(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


@pytest.mark.parametrize("width", [896, 4096, 8192])
@pytest.mark.parametrize("residual_dtype", [None, BF16, torch.float32])
def test_norm_matches_float64(width: int, residual_dtype: Any) -> None:
    """Overlapping at one width: whether it does makes another build, and no other arithmetic."""
    pdl = width == 4096
    x, weight = random(300, width), random(width)
    residual = None if residual_dtype is None else random(300, width, dtype=residual_dtype)
    normed, total = reference_rms_norm(x, weight, 1e-5, residual)
    out = torch.full_like(x, torch.nan)
    rms_norm(x, weight, out=out, epsilon=1e-5, residual=residual, pdl=pdl)
    assert relative_error(out, normed) < BOUND
    if residual is not None:
        assert relative_error(residual, total) < BOUND


@pytest.mark.parametrize("n", [1, 300])
def test_silu_matches_float64(n: int) -> None:
    gate_up = random(n, 2 * 14336) * 3
    out = torch.full((n, 14336), torch.nan, device="cuda", dtype=BF16)
    silu_mul(gate_up, out=out)
    assert relative_error(out, reference_silu_mul(gate_up)) < BOUND


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "full"),
    [(32, 8, 128, False), (32, 8, 128, True), (28, 4, 64, True), (8, 8, 80, True),
     (12, 4, 96, False), (8, 1, 256, True)],
)  # fmt: skip
@pytest.mark.parametrize("kv_dtype", [BF16, FP8])
def test_rotated_heads_and_pages_match_float64(
    heads: int, kv_heads: int, dim: int, full: bool, kv_dtype: torch.dtype
) -> None:
    """`full`: with bias and norms, which are more work on the same heads."""
    n = 77
    view = allocate_view(
        3, layers=2, kv_heads=kv_heads, head_dim=dim, dtype=kv_dtype, device="cuda"
    )
    qkv = random(n, (heads + 2 * kv_heads) * dim)
    extras: dict[str, Any] = {}
    if full:
        extras = {
            "bias": random(qkv.shape[1]),
            "query_norm": random(dim),
            "key_norm": random(dim),
            "epsilon": 1e-5,
        }
    positions = torch.randint(0, 5000, (n,), device="cuda")
    slots = torch.randperm(3 * 64, device="cuda")[:n]
    slots[5] = -1
    cos, sin = (torch.from_numpy(t).cuda() for t in Rope(500000.0).tables(5000, dim))
    queries = torch.full((n, heads, dim), torch.nan, device="cuda", dtype=BF16)
    rope_write(qkv, view, 1, positions, slots, cos, sin, queries=queries, **extras)
    expected = reference_rope(qkv, positions, cos, sin, heads=heads, kv_heads=kv_heads, **extras)
    assert relative_error(queries, expected[0]) < BOUND
    written = slots[slots >= 0]
    for i, (part, wanted) in enumerate(zip(view.parts(), expected[1:], strict=True)):
        held = part[written // 64, 1, :, written % 64].double()
        if kv_dtype == FP8:
            held *= view.plane_scales()[written // 64, 1, i, :, written % 64][..., None]
        assert relative_error(held, wanted[slots >= 0]) < (0.04 if kv_dtype == FP8 else BOUND)
        assert part[:, 0].double().abs().sum() == 0


@pytest.mark.parametrize("page_bytes", [128 * 1024, 40 * 1024])
def test_scattered_pages_arrive_and_nothing_else_changes(page_bytes: int) -> None:
    source = torch.randint(0, 256, (50, page_bytes), dtype=torch.uint8, device="cuda")
    target = torch.zeros(60, page_bytes, dtype=torch.uint8, device="cuda")
    taken, put = torch.randperm(50, device="cuda")[:40], torch.randperm(60, device="cuda")[:40]
    copy_pages(source.data_ptr(), target.data_ptr(), taken.int(), put.int(), page_bytes=page_bytes)
    expected = torch.zeros_like(target)
    expected[put] = source[taken]
    assert torch.equal(target, expected)


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_tokens_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    n, vocab = 64, 128_256
    torch.manual_seed(3)
    logits = (torch.randn(n, vocab, device="cuda") * 2).to(dtype)
    temperatures = torch.rand(n) + 0.3
    temperatures[::4] = 0
    rng = np.random.default_rng(5)
    seeds = rng.integers(0, 2**64, n, dtype=np.uint64)
    positions, indexes = rng.integers(0, 5000, n), rng.integers(0, 4, n)
    tokens = torch.full((n,), -7, dtype=torch.int32, device="cuda")
    logprobs = torch.full((n,), torch.nan, device="cuda")
    sample(
        logits,
        temperatures.cuda(),
        torch.from_numpy(seeds.view(np.int64)).cuda(),
        torch.from_numpy(indexes.astype(np.int32)).cuda(),
        torch.from_numpy(positions.astype(np.int32)).cuda(),
        tokens=tokens,
        logprobs=logprobs,
    )
    rows = logits.float().cpu().numpy()
    groups = np.arange(vocab // 4)
    for i in range(n):
        total = rows[i] - rows[i].max()
        if temperatures[i] > 0:
            bits = token_bits(
                groups, seed=int(seeds[i]), sample_index=int(indexes[i]), position=int(positions[i])
            )
            noise = -np.log(-np.log(uniform(bits.reshape(-1))))
            total = total / temperatures[i].numpy() + noise
        assert total[tokens[i].item()] >= total.max() - 1e-4  # logarithms differ by a few ulp
    exact = torch.log_softmax(logits.double(), -1).gather(1, tokens.long()[:, None])[:, 0]
    assert torch.allclose(logprobs.double(), exact, atol=1e-4)


def test_a_broken_row_fails_alone() -> None:
    logits = torch.zeros(3, 128_256, device="cuda", dtype=BF16)
    logits[1, 128_255] = torch.nan
    logits[2, 77] = 1
    tokens = torch.full((3,), -7, dtype=torch.int32, device="cuda")
    zeros = torch.zeros(3, dtype=torch.int32, device="cuda")
    sample(
        logits, torch.zeros(3, device="cuda"), zeros.long(), zeros, zeros,
        tokens=tokens, logprobs=torch.empty(3, device="cuda"),
    )  # fmt: skip
    assert tokens.tolist() == [0, -1, 77]
