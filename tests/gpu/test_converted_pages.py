"""Pages of other layouts, made by a card, beside those that a host makes of the same bytes; pools
of several ranks, each rank's part an allocation of its own.

Expected: every byte the host's, FP8 too. `python -m benchmarks.transfer.converted_pages` has the
rates.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("triton")
pytest.importorskip("xxhash")

import torch

from benchmarks.transfer.far_pool import far_pool
from tests.kvtransfer.laid_out import layout
from tests.kvtransfer.pools import PoolForTest, open_pool
from twolane.deploy.process.page_converters import page_converters_of
from twolane.kvtransfer.device import CopyStream, SentMemory
from twolane.kvtransfer.digests import mix64
from twolane.kvtransfer.layouts.gather import Paging
from twolane.kvtransfer.layouts.sources import MadePages
from twolane.layout import Layout
from twolane.worker.cuda.copy_cost import CopyCost
from twolane.worker.cuda.copy_stream import CopyStreamConfig
from twolane.worker.cuda.memory import CudaMemory
from twolane.worker.cuda.page_converter import FP8_DTYPE

pytestmark = pytest.mark.gpu

FAR_CARD = str(torch.cuda.device_count() - 1)
SMALL = {"layers": 2, "head_dim": 128, "whole_kv_heads": 8}
LLAMA_8B = {"layers": 32, "head_dim": 128, "whole_kv_heads": 8}
N_TOKENS = 1000
KERNEL = CopyStreamConfig(cost=CopyCost(run_start_s=1.0))
ENGINES = CopyStreamConfig(cost=CopyCost(kernel_start_s=1.0))


@dataclass(frozen=True, slots=True)
class Case:
    """A row of tokens in scattered pages of a card's pool, and what a host makes of it."""

    memory: CudaMemory
    made: SentMemory
    src: npt.NDArray[np.int64]
    expected: npt.NDArray[np.uint8]


def fill(pool: PoolForTest, source: Layout) -> None:
    """Numbers of many sizes, some of them not finite; any bytes where nothing converts them."""
    rng = torch.Generator("cuda").manual_seed(1)
    for part in pool.pages.parts:
        if source.dtype == FP8_DTYPE:
            part.random_(0, 256, generator=rng)
            continue
        values = part.view(getattr(torch, source.dtype)).view(-1, source.head_dim)
        values.normal_(generator=rng)
        values *= torch.logspace(-4, 2, len(values), device="cuda")[:, None]
        values[::97] = 0.0
        values[5::1001, 3] = torch.inf
        values[7::1001, 4] = torch.nan
    torch.cuda.synchronize()


@contextmanager
def case(source: Layout, target: Layout) -> Iterator[Case]:
    n_pages = -(-N_TOKENS // source.page_tokens)
    pool = open_pool("cuda", n_pages + 3, source.page_bytes, source.ranks)
    fill(pool, source)
    offered = np.random.default_rng(2).permutation(n_pages + 3)[:n_pages].tolist()
    paging = Paging(source.page_tokens, target.page_tokens, target.page_bytes)
    src = paging.sources(offered, 0, paging.n_pages(N_TOKENS), N_TOKENS)
    held = np.ascontiguousarray(pool.pages[np.arange(n_pages + 3)])
    make = None if source.dtype == target.dtype else _to_fp8(source)
    host = MadePages(held, source, target, make)
    expected = [host.take(src[i : i + 1])[0][0].copy() for i in range(len(src))]
    memory = pool.transfers
    assert isinstance(memory, CudaMemory)
    yield Case(memory, memory.made(source, target), src, np.array(expected))
    pool.close()


def _to_fp8(source: Layout) -> Any:
    return page_converters_of(source.to_json())[FP8_DTYPE]


def wait(lane: CopyStream) -> None:
    fence = lane.mark()
    while not fence.is_done():
        pass


CASES = [
    *[({"page_tokens": a}, {"page_tokens": b}) for a, b in ((64, 16), (64, 128), (16, 64))],
    *[({"ranks": a}, {"ranks": b}) for a in (1, 2, 4) for b in (1, 2, 4) if a != b],
    ({"page_tokens": 64, "ranks": 4}, {"page_tokens": 16, "ranks": 2}),
    ({"ranks": 4, "whole_kv_heads": 2}, {"ranks": 1, "whole_kv_heads": 2}),
    ({"ranks": 1, "whole_kv_heads": 2}, {"ranks": 4, "whole_kv_heads": 2}),
    ({"dtype": FP8_DTYPE, "page_tokens": 64}, {"dtype": FP8_DTYPE, "page_tokens": 16}),
    ({}, {"dtype": FP8_DTYPE}),
    ({"page_tokens": 16}, {"dtype": FP8_DTYPE, "page_tokens": 64}),
    ({"page_tokens": 128, "head_dim": 80}, {"dtype": FP8_DTYPE, "page_tokens": 64, "head_dim": 80}),
    ({"ranks": 4}, {"dtype": FP8_DTYPE, "ranks": 2, "page_tokens": 16}),
    ({"dtype": "float32", "ranks": 2}, {"dtype": FP8_DTYPE, "ranks": 1}),
]


@pytest.mark.parametrize(("source", "target"), CASES)
def test_a_card_makes_the_pages_that_a_host_makes(
    source: dict[str, Any], target: dict[str, Any]
) -> None:
    ours = layout(**{**SMALL, "page_tokens": 64, **source})
    theirs = layout(**{**SMALL, "page_tokens": 64, **target})
    with case(ours, theirs) as row:
        n = len(row.src)
        host = open_pool("host", n, theirs.page_bytes)
        row.made.pin(host.pages)
        lane = row.made.open_copy_stream()
        sums = lane.sum(row.src)
        lane.to_host(row.src, host.pages)
        wait(lane)
        assert (host.pages == row.expected).all()
        assert sums.tolist() == mix64(row.expected, np.arange(n)).tolist()
        dst = np.random.default_rng(3).permutation(n + 5)[:n]
        for config in (KERNEL, ENGINES):
            row.memory.config = config
            peer_pool = open_pool("cuda", n + 5, theirs.page_bytes, theirs.ranks)
            assert isinstance(peer_pool.transfers, CudaMemory)
            peer = row.made.open_peer(peer_pool.transfers.export())
            by = row.made.open_copy_stream()
            by.to_peer(peer, row.src, dst)
            wait(by)
            assert (peer_pool.pages[dst] == row.expected).all()
            others = np.setdiff1d(np.arange(n + 5), dst)
            assert not peer_pool.pages[others].any()
            by.close()
            peer.close()
            peer_pool.close()
        lane.close()
        row.made.unpin(host.pages)
        host.close()


@pytest.mark.parametrize("config", [KERNEL, ENGINES])
@pytest.mark.parametrize("ranks", [2, 4])
def test_pages_of_ranks_go_part_by_part_to_as_many_ranks_and_through_a_host(
    ranks: int, config: CopyStreamConfig
) -> None:
    size, n = ranks * 40 * 1024, 32
    source, target = (open_pool("cuda", n, size, ranks) for _ in range(2))
    content = np.random.default_rng(1).integers(0, 256, (n, size), np.uint8)
    source.pages[np.arange(n)] = content
    ours, theirs = source.transfers, target.transfers
    assert isinstance(ours, CudaMemory)
    assert isinstance(theirs, CudaMemory)
    ours.config = config
    peer, lane, back = (
        ours.open_peer(theirs.export()),
        ours.open_copy_stream(),
        theirs.open_copy_stream(),
    )
    src, dst = np.array([4, 5, 6, 20, 1]), np.array([9, 10, 11, 3, 30])
    lane.to_peer(peer, src, dst)
    sums = lane.sum(src)
    wait(lane)
    assert (target.pages[dst] == content[src]).all()
    assert sums.tolist() == mix64(content, src).tolist()
    host = open_pool("host", 5, size)
    ours.pin(host.pages)
    lane.to_host(src, host.pages)
    wait(lane)
    assert (host.pages == content[src]).all()
    back.from_host(host.pages, dst + 1)
    there = back.sum(dst + 1)
    wait(back)
    assert (target.pages[dst + 1] == content[src]).all()
    assert there.tolist() == sums.tolist()
    lane.close()
    back.close()
    ours.unpin(host.pages)
    for pool in (source, target, host):
        pool.close()


def test_pages_are_made_into_the_parts_of_a_pool_of_another_process() -> None:
    """They come back by the same way: what the peer's parts then hold is read from here."""
    ours = layout(**{**SMALL, "page_tokens": 64, "ranks": 2})
    theirs = layout(**{**SMALL, "page_tokens": 16, "ranks": 4})
    with case(ours, theirs) as row, far_pool(FAR_CARD, 100, theirs.page_bytes, 4) as address:
        _check_peer(row, theirs, address, n_pages=100)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ({}, {"page_tokens": 16}),
        ({"page_tokens": 16, "ranks": 4}, {}),
        ({"ranks": 2}, {"dtype": FP8_DTYPE, "ranks": 4, "page_tokens": 16}),
    ],
)
def test_pages_of_real_size_are_made_into_a_pool_of_another_card(
    source: dict[str, Any], target: dict[str, Any]
) -> None:
    ours = layout(**{**LLAMA_8B, "page_tokens": 64, **source})
    theirs = layout(**{**LLAMA_8B, "page_tokens": 64, **target})
    with case(ours, theirs) as row:
        n_pages = len(row.src)
        with far_pool(FAR_CARD, n_pages, theirs.page_bytes, theirs.ranks) as address:
            _check_peer(row, theirs, address, n_pages=n_pages)


def _check_peer(row: Case, theirs: Layout, address: str, *, n_pages: int) -> None:
    """The row arrives in scattered pages of a pool that has so many."""
    peer = row.made.open_peer(address)
    lane = row.made.open_copy_stream()
    dst = np.random.default_rng(5).permutation(n_pages)[: len(row.src)]
    lane.to_peer(peer, row.src, dst)
    wait(lane)
    size = theirs.rank_page_bytes
    for rank, part in enumerate(peer.parts):  # type: ignore[attr-defined]
        held = torch.empty(n_pages * size, dtype=torch.uint8, pin_memory=True)
        _fetch(held, part.address)
        expected = row.expected[:, rank * size : (rank + 1) * size]
        assert (held.view(n_pages, size).numpy()[dst] == expected).all()
    lane.close()
    peer.close()


def _fetch(into: torch.Tensor, address: int) -> None:
    """By a copy of a stream of its own, and not as a tensor: the memory is another card's."""
    from twolane.engine.cuda.driver import Copies

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    copies = Copies(stream.cuda_stream)
    copies.submit(([into.data_ptr()], [address], [into.numel()]))
    stream.synchronize()
    copies.close()
