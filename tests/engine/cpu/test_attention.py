"""Paged attention against dense float64 softmax, over ragged batches, windows and head shapes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from twolane.engine.cpu.attention import Attention
from twolane.engine.cpu.attention_plan import plan_attention
from twolane.engine.cpu.batch import PackedRows, pack
from twolane.engine.cpu.pool import KVPool, PoolShape
from twolane.engine.step import Page, RowWork
from twolane.params import SamplingParams

PARAMS = SamplingParams()


def filled_pool(
    kv_heads: int, head_dim: int, page_tokens: int, n_pages: int, dtype: torch.dtype
) -> KVPool:
    shape = PoolShape(
        layers=2, kv_heads=kv_heads, head_dim=head_dim, page_tokens=page_tokens, dtype=dtype
    )
    pool = KVPool(shape, n_pages)
    source = torch.Generator().manual_seed(7)
    pool.units.copy_(torch.randn(pool.units.shape, generator=source))
    return pool


def rows_of(spans: list[tuple[int, int]], pool: KVPool) -> list[RowWork]:
    """One row for each (start, n_new), on scattered pages of its own."""
    order = np.random.default_rng(1).permutation(pool.n_pages).tolist()
    work = []
    for i, (start, n_new) in enumerate(spans):
        n_pages = -(-(start + n_new) // pool.shape.page_tokens)
        pages = [Page(order.pop()) for _ in range(n_pages)]
        tokens = [0] * (start + n_new)
        work.append(RowWork(i, tokens, start, n_new, pages, 1, PARAMS, False))
    return work


def dense(
    queries: torch.Tensor, pool: KVPool, layer: int, work: list[RowWork], window: int
) -> torch.Tensor:
    """The same by the definition: one row, one head at a time, in float64."""
    shape, at, out = pool.shape, 0, []
    pages = (
        torch.from_numpy(pool.bytes_view.copy())
        .view(shape.dtype)
        .view(pool.n_pages, shape.layers, 2, shape.kv_heads, shape.page_tokens, shape.head_dim)
    )
    for row in work:
        end = row.start + row.n_new
        kv = pages[list(row.pages), layer].double()  # [pages, 2, kv_heads, page_tokens, dim]
        kv = kv.permute(1, 2, 0, 3, 4).reshape(2, shape.kv_heads, -1, shape.head_dim)[:, :, :end]
        q = queries[at : at + row.n_new].double().transpose(0, 1)
        keys, values = kv.repeat_interleave(len(q) // shape.kv_heads, dim=1)
        scores = q @ keys.transpose(1, 2) / math.sqrt(shape.head_dim)
        distance = torch.arange(row.start, end)[:, None] - torch.arange(end)
        hidden = (distance < 0) | (distance >= window if window else torch.tensor(False))
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        out.append((weights @ values).transpose(0, 1).flatten(1))
        at += row.n_new
    return torch.cat(out)


def attend(
    attention: Attention, queries: torch.Tensor, pool: KVPool, packed: PackedRows, window: int
) -> torch.Tensor:
    plan = plan_attention(
        packed, pool, window=window, heights=attention.heights, group=attention.group
    )
    return attention(queries, pool, 1, plan)


SPANS = [(0, 1), (0, 15), (16, 1), (63, 1), (64, 1), (700, 1), (60, 70), (0, 200), (129, 33)]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("window", [0, 1, 64, 100])
@pytest.mark.parametrize(
    ("group", "kv_heads", "head_dim", "page_tokens"),
    [(1, 3, 16, 16), (2, 2, 64, 16), (4, 2, 80, 48), (7, 1, 32, 64), (16, 1, 16, 128)],
)
def test_it_matches_dense_float64(
    group: int, kv_heads: int, head_dim: int, page_tokens: int, window: int, exact: bool
) -> None:
    pool = filled_pool(kv_heads, head_dim, page_tokens, 120, torch.float32)
    work = rows_of(SPANS, pool)
    packed = pack(work, page_tokens)
    queries = torch.randn(len(packed.token_ids), group * kv_heads, head_dim)
    attention = Attention(group=group, head_dim=head_dim, exact=exact, threads=1)
    found = attend(attention, queries, pool, packed, window)
    expected = dense(queries, pool, 1, work, window)
    assert (found.double() - expected).abs().max() < 1e-5


def test_it_matches_dense_float64_over_bfloat16_pages() -> None:
    pool = filled_pool(2, 64, 16, 120, torch.bfloat16)
    work = rows_of(SPANS, pool)
    packed = pack(work, 16)
    queries = torch.randn(len(packed.token_ids), 4, 64)
    attention = Attention(group=2, head_dim=64, exact=True, threads=1)
    found = attend(attention, queries, pool, packed, 0)
    assert (found.double() - dense(queries, pool, 1, work, 0)).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("group", "kv_heads", "head_dim", "window", "threads"),
    [
        (3, 2, 32, 0, 1),
        (3, 2, 32, 90, 1),
        (3, 2, 32, 90, 2),
        (7, 1, 64, 0, 1),
        (1, 1, 128, 90, 1),
        (2, 1, 80, 0, 1),
        (4, 8, 64, 0, 1),
    ],
)
def test_an_exact_query_has_the_same_bits_in_any_company(
    group: int, kv_heads: int, head_dim: int, window: int, threads: int
) -> None:
    pool = filled_pool(kv_heads, head_dim, 16, 120, torch.float32)
    work = rows_of(SPANS, pool)
    packed = pack(work, 16)
    queries = torch.randn(len(packed.token_ids), group * kv_heads, head_dim)
    torch.set_num_threads(threads)
    attention = Attention(group=group, head_dim=head_dim, exact=True, threads=threads)
    together = attend(attention, queries, pool, packed, window)
    for i, row in enumerate(work):
        at = int(packed.offsets[i])
        for n in (1, 2, row.n_new):  # the row alone, whole or its last tokens only
            start = row.start + row.n_new - n
            if start < row.start:
                continue
            part = [RowWork(0, row.token_ids, start, n, row.pages, 1, PARAMS, False)]
            span = slice(at + row.n_new - n, at + row.n_new)
            alone = attend(attention, queries[span], pool, pack(part, 16), window)
            assert torch.equal(alone, together[span]), (i, n)


def test_blocks_cover_every_token_once_whatever_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = filled_pool(2, 32, 16, 120, torch.float32)
    work = rows_of(SPANS, pool)
    packed = pack(work, 16)
    queries = torch.randn(len(packed.token_ids), 4, 32)
    attention = Attention(group=2, head_dim=32, exact=True, threads=1)
    whole = attend(attention, queries, pool, packed, 0)
    monkeypatch.setattr("twolane.engine.cpu.attention_plan.BLOCK_BYTES", 1)
    plan = plan_attention(packed, pool, window=0, heights=attention.heights, group=2)
    assert len(plan) > len(work)
    tokens = np.concatenate([np.unique(block.tokens.numpy()) for block in plan])
    assert sorted(tokens.tolist()) == list(range(len(packed.token_ids)))
    assert torch.equal(attend(attention, queries, pool, packed, 0), whole)
