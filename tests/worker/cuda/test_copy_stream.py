"""Lanes over a pool of a card, of one rank and of several, without a card (see `cardless`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

import torch

from tests.kvtransfer.laid_out import Bytes, layout
from tests.worker.cardless import without_card
from twolane.engine.step import DevicePool
from twolane.kvtransfer.device import DeviceError
from twolane.kvtransfer.digests import mix64
from twolane.kvtransfer.layouts.gather import Paging
from twolane.kvtransfer.layouts.sources import MadePages
from twolane.layout import Layout
from twolane.worker.cuda.copy_cost import CopyCost
from twolane.worker.cuda.copy_stream import CopyStreamConfig
from twolane.worker.cuda.memory import CudaMemory

KERNEL = CopyStreamConfig(cost=CopyCost(run_start_s=1.0))
ENGINES = CopyStreamConfig(cost=CopyCost(kernel_start_s=1.0))
N_PAGES = 6


@pytest.fixture(autouse=True)
def mapped() -> Iterator[dict[int, int]]:
    with without_card() as found:
        yield found


class Pool:
    """Random pages, in a memory for each rank."""

    def __init__(
        self, side: Layout, seed: int, config: CopyStreamConfig, *, is_far: bool = False
    ) -> None:
        rng = torch.Generator().manual_seed(seed)
        shape = (N_PAGES, side.rank_page_bytes)
        self.parts = [
            torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng)
            for _ in range(side.ranks)
        ]
        addresses = tuple(part.data_ptr() for part in self.parts)
        exports = tuple(at.to_bytes(8, "little") for at in addresses) if is_far else ()
        pool = DevicePool(0, addresses, self.parts[0].nbytes, exports)
        self.memory = CudaMemory(pool, side.page_bytes, config=config)

    @property
    def pages(self) -> Bytes:
        return np.concatenate([part.numpy() for part in self.parts], axis=1)


def of_ranks(ranks: int, **changed: int | str) -> Layout:
    facts: dict[str, Any] = {"head_dim": 16, "dtype": "float16", "whole_kv_heads": 4}
    return layout(**facts | changed, ranks=ranks)


@pytest.mark.parametrize("config", [KERNEL, ENGINES])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_whole_pages_go_from_part_to_part_and_are_summed_as_one(
    ranks: int, config: CopyStreamConfig
) -> None:
    side = of_ranks(ranks)
    ours, theirs = Pool(side, 1, config), Pool(side, 2, config)
    before = theirs.pages
    lane = ours.memory.open_copy_stream()
    src, dst = np.array([1, 2, 5]), np.array([3, 4, 0])
    lane.to_peer(ours.memory.open_peer(theirs.memory.export()), src, dst)
    before[dst] = ours.pages[src]
    assert (theirs.pages == before).all()
    assert lane.sum(src).tolist() == mix64(ours.pages, src).tolist()


@pytest.mark.parametrize("ranks", [1, 4])
def test_pages_of_ranks_pass_through_host_memory_in_one_piece(ranks: int) -> None:
    side = of_ranks(ranks)
    ours, theirs = Pool(side, 1, KERNEL), Pool(side, 2, KERNEL)
    before = theirs.pages
    buffer = np.zeros((3, side.page_bytes), np.uint8)
    src, dst = np.array([1, 2, 5]), np.array([3, 4, 0])
    ours.memory.open_copy_stream().to_host(src, buffer)
    assert (buffer == ours.pages[src]).all()
    theirs.memory.open_copy_stream().from_host(buffer, dst)
    before[dst] = buffer
    assert (theirs.pages == before).all()


@pytest.mark.parametrize("config", [KERNEL, ENGINES])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (of_ranks(1, page_tokens=32), of_ranks(1, page_tokens=16)),
        (of_ranks(1), of_ranks(4)),
        (of_ranks(4, page_tokens=16), of_ranks(2, page_tokens=64)),
    ],
)
def test_made_pages_go_to_the_peers_parts_to_the_host_and_into_sums(
    source: Layout, target: Layout, config: CopyStreamConfig
) -> None:
    ours, theirs = Pool(source, 1, config), Pool(target, 2, config)
    before = theirs.pages
    paging = Paging(source.page_tokens, target.page_tokens, target.page_bytes)
    n_tokens = 5 * source.page_tokens - 3
    src = paging.sources([4, 0, 5, 1, 2], 0, paging.n_pages(n_tokens), n_tokens)[:N_PAGES]
    host = MadePages(ours.pages, source, target)
    expected = np.array([host.take(src[i : i + 1])[0][0].copy() for i in range(len(src))])
    made = ours.memory.made(source, target)
    assert made.page_bytes == target.page_bytes
    lane, dst = made.open_copy_stream(), np.array([3, 4, 0, 5, 1, 2])[: len(src)]
    assert lane.sum(src).tolist() == mix64(expected, np.arange(len(src))).tolist()
    lane.to_peer(made.open_peer(theirs.memory.export()), src, dst)
    before[dst] = expected
    assert (theirs.pages == before).all()
    buffer = np.zeros_like(expected)
    lane.to_host(src, buffer)
    assert (buffer == expected).all()


def test_what_is_sent_is_what_was_summed_and_made_again_after_a_mark() -> None:
    source, target = of_ranks(1, page_tokens=32), of_ranks(1)
    ours, theirs = Pool(source, 1, KERNEL), Pool(target, 2, KERNEL)
    made = ours.memory.made(source, target)
    lane, peer = made.open_copy_stream(), made.open_peer(theirs.memory.export())
    src, dst = np.array([[3], [9]]), np.array([0, 1])
    summed = lane.sum(src).tolist()
    ours.parts[0] += 1
    lane.to_peer(peer, src, dst)
    assert summed == mix64(theirs.pages, dst).tolist()
    lane.mark()
    lane.to_peer(peer, src, dst)
    assert summed != mix64(theirs.pages, dst).tolist()
    assert lane.sum(src).tolist() == mix64(theirs.pages, dst).tolist()


def test_every_part_of_another_process_is_mapped_once_and_given_back(
    mapped: dict[int, int],
) -> None:
    side = of_ranks(4)
    ours, theirs = Pool(side, 1, KERNEL), Pool(side, 2, KERNEL, is_far=True)
    address = theirs.memory.export().replace('"ticks": ', '"ticks": 1')
    peer = ours.memory.open_peer(address)
    addresses = [part.data_ptr() for part in theirs.parts]
    assert mapped == dict.fromkeys(addresses, 1)
    lane = ours.memory.open_copy_stream()
    lane.to_peer(peer, np.array([2]), np.array([5]))
    assert (theirs.pages[5] == ours.pages[2]).all()
    peer.close()
    peer.close()
    assert mapped == dict.fromkeys(addresses, 0)


def test_where_a_part_cannot_be_mapped_none_stays_mapped(mapped: dict[int, int]) -> None:
    side = of_ranks(4)
    ours, theirs = Pool(side, 1, KERNEL), Pool(side, 2, KERNEL, is_far=True)
    facts = json.loads(theirs.memory.export())
    facts["pid"] = 1
    facts["handles"][2] = "00"
    with pytest.raises(DeviceError):
        ours.memory.open_peer(json.dumps(facts))
    assert sum(mapped.values()) == 0
    assert len(mapped) == 2


def test_pages_of_another_size_are_no_peer_pool() -> None:
    ours, theirs = Pool(of_ranks(1), 1, KERNEL), Pool(of_ranks(1, page_tokens=32), 2, KERNEL)
    with pytest.raises(DeviceError, match="bytes"):
        ours.memory.open_peer(theirs.memory.export())


def test_a_card_makes_fp8_of_wide_pages_alone() -> None:
    memory = Pool(of_ranks(1), 1, KERNEL).memory
    assert memory.makes_dtypes("bfloat16") == ("bfloat16", "float8_e4m3fn")
    assert memory.makes_dtypes("float8_e4m3fn") == ("float8_e4m3fn",)


def test_a_pool_of_ranks_whose_layout_is_another_is_a_bug() -> None:
    side = of_ranks(2)
    memory = Pool(side, 1, KERNEL).memory
    with pytest.raises(AssertionError):
        memory.made(replace(side, ranks=4, kv_heads=1), side)
