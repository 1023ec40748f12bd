"""Pages of other layouts, made of a pool by the kernels of a card, beside pages laid out by hand.

In the interpreter, in float16 and float32; on a card: tests/gpu/test_converted_pages.py.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import cast
from unittest import mock

import pytest

pytest.importorskip("triton")

import numpy as np
import numpy.typing as npt
import torch

from tests.kvtransfer.laid_out import Bytes, cache, laid_out, layout, whole_pages
from twolane.engine.cpu.fp8_pages import quantise_pages
from twolane.kvtransfer.layouts.gather import Paging
from twolane.layout import Layout
from twolane.worker.cuda.page_converter import CudaPageConverter, Staging
from twolane.worker.cuda.page_parts import Parts

CPU = torch.device("cpu")
FP8 = "float8_e4m3fn"
NO_STREAM = cast(torch.cuda.Stream, None)  # the interpreter does everything at once


def numbers(side: Layout, n_tokens: int) -> tuple[Bytes, Bytes]:
    """A row whose values are real ones, of many sizes; one infinite, one NaN."""
    shape = (n_tokens, side.layers, 2, side.whole_kv_heads, side.head_dim)
    rng = np.random.default_rng(5)
    held = rng.standard_normal(shape) * np.logspace(-2, 2, n_tokens)[:, None, None, None, None]
    held[3], held[5, 0, 0, 0, 1], held[6, 0, 1, 0, 2] = 0.0, np.inf, np.nan
    values = np.ascontiguousarray(held.astype(side.dtype)).view(np.uint8)
    return values, np.zeros((*shape[:-1], 0), np.uint8)


def made_by_kernel(
    source: Layout, target: Layout, row: tuple[Bytes, Bytes], n_tokens: int
) -> npt.NDArray[np.uint8]:
    """All pages of the row, out of scattered pages of a pool with a memory of its own a rank."""
    n_source = -(-n_tokens // source.page_tokens)
    offered = np.random.default_rng(1).permutation(n_source + 2)[:n_source]
    pools = []
    for rank in range(source.ranks):
        pool = torch.randint(0, 256, (n_source + 2, source.rank_page_bytes), dtype=torch.uint8)
        pool[offered] = torch.from_numpy(laid_out(source, rank, row))
        pools.append(pool)
    paging = Paging(source.page_tokens, target.page_tokens, target.page_bytes)
    slots = paging.sources(offered.tolist(), 0, paging.n_pages(n_tokens), n_tokens)
    maker = CudaPageConverter([pool.data_ptr() for pool in pools], source, target, CPU)
    out = torch.full((len(slots), maker.page_bytes), 7, dtype=torch.uint8)
    maker.convert(torch.from_numpy(slots.astype(np.int32)), out, programs=3)
    return out.numpy()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ({"page_tokens": 64}, {"page_tokens": 16}),
        ({"page_tokens": 16}, {"page_tokens": 128}),
        ({"page_tokens": 48, "head_dim": 24}, {"page_tokens": 32, "head_dim": 24}),
        ({"page_tokens": 32, "dtype": FP8}, {"page_tokens": 64, "dtype": FP8}),
        ({"page_tokens": 16, "ranks": 4}, {"page_tokens": 16, "ranks": 1}),
        ({"page_tokens": 32, "ranks": 2}, {"page_tokens": 16, "ranks": 4}),
        ({"page_tokens": 16, "ranks": 4}, {"page_tokens": 48, "ranks": 2}),
        ({"ranks": 1, "whole_kv_heads": 2}, {"ranks": 4, "whole_kv_heads": 2}),
        ({"ranks": 4, "whole_kv_heads": 1, "dtype": FP8},
         {"ranks": 2, "whole_kv_heads": 1, "dtype": FP8, "page_tokens": 32}),
    ],
)  # fmt: skip
def test_pages_are_those_of_the_other_layout(
    source: dict[str, int | str], target: dict[str, int | str]
) -> None:
    shape: dict[str, int | str] = {"whole_kv_heads": 4, "head_dim": 16}
    ours, theirs = layout(**shape | source), layout(**shape | target)
    row = cache(ours, 75, 2)
    made = made_by_kernel(ours, theirs, row, 75)
    assert (made == whole_pages(theirs, row)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ({"page_tokens": 64}, {"page_tokens": 64}),
        ({"page_tokens": 32}, {"page_tokens": 64}),
        ({"page_tokens": 48, "head_dim": 80}, {"page_tokens": 16, "head_dim": 80}),
        ({"page_tokens": 16, "ranks": 2}, {"page_tokens": 32, "ranks": 1}),
        ({"page_tokens": 32, "ranks": 1}, {"page_tokens": 16, "ranks": 4}),
    ],
)
def test_pages_made_fp8_are_byte_for_byte_those_of_a_cpu(
    dtype: str, source: dict[str, int | str], target: dict[str, int | str]
) -> None:
    shape: dict[str, int | str] = {"whole_kv_heads": 2, "head_dim": 16, "dtype": dtype}
    ours = layout(**shape | source)
    wide = layout(**shape | target)
    small = replace(wide, dtype=FP8)
    row = numbers(ours, 75)
    made = made_by_kernel(ours, small, row, 75)
    expected = np.zeros_like(made)
    facts = {"kv_heads": wide.kv_heads, "head_dim": wide.head_dim, "page_tokens": wide.page_tokens}
    for rank in range(wide.ranks):
        size = small.rank_page_bytes
        out = np.zeros((len(made), size), np.uint8)
        quantise_pages(laid_out(wide, rank, row), out, dtype=dtype, **facts)
        expected[:, rank * size : (rank + 1) * size] = out
    assert (made == expected).all()
    assert made.any()


@pytest.fixture
def staging() -> Iterator[tuple[Staging, torch.Tensor]]:
    """Of 3 pages at most, and the pool whose pages of 32 tokens it makes pages of 16 of."""
    large = layout(page_tokens=32, head_dim=16, dtype="float16")
    small = replace(large, page_tokens=16)
    pool = torch.randint(0, 256, (4, large.page_bytes), dtype=torch.uint8)
    maker = CudaPageConverter([pool.data_ptr()], large, small, CPU)
    with (
        mock.patch("twolane.worker.cuda.page_converter.STAGING_BYTES", 3 * small.page_bytes + 1),
        mock.patch(
            "twolane.worker.cuda.page_converter.upload", lambda ids, _: torch.from_numpy(ids).int()
        ),
    ):
        yield Staging(maker, 4), pool


def read(parts: Parts, pages: npt.NDArray[np.int64]) -> list[bytes]:
    (part,) = parts
    addresses = [part.address + page * part.stride for page in pages.tolist()]
    return [ctypes.string_at(address, part.n_bytes) for address in addresses]


def half(pool: torch.Tensor, slot: int) -> bytes:
    """Of each head's tokens in each plane: what that slot of the pool stands for."""
    halves = pool.view(4, 8, 2, 512)
    return bytes(halves[slot // 2, :, slot % 2].reshape(-1).numpy())


def test_a_row_is_made_in_batches_that_are_read_before_the_next(
    staging: tuple[Staging, torch.Tensor],
) -> None:
    made, pool = staging
    slots = np.array([[5], [0], [7], [2], [-1]])
    spans, pages = [], []
    for parts, ids, span in made.batches(slots, NO_STREAM):
        spans.append((span.start, span.stop))
        pages += read(parts, ids)
    assert spans == [(0, 3), (3, 5)]
    assert pages == [half(pool, slot) for slot in (5, 0, 7, 2)] + [bytes(8 * 512)]


def test_pages_are_made_once_until_a_mark_and_anew_after_it(
    staging: tuple[Staging, torch.Tensor],
) -> None:
    made, pool = staging
    slots = np.array([[5], [0]])
    ((parts, ids, _),) = made.batches(slots, NO_STREAM)
    before = read(parts, ids)
    pool[2] += 1
    ((parts, ids, _),) = made.batches(slots.copy(), NO_STREAM)
    assert read(parts, ids) == before, "what was summed is what is copied"
    made.forget()
    ((parts, ids, _),) = made.batches(slots, NO_STREAM)
    assert read(parts, ids) == [half(pool, 5), half(pool, 0)] != before
    ((parts, ids, _),) = made.batches(slots[:1], NO_STREAM)
    assert read(parts, ids) == [half(pool, 5)]
