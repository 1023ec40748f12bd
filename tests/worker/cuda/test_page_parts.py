"""Which bytes are copied where, between pools of one part and of several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from twolane.kvtransfer.copy_plan import PageIds
from twolane.worker.cuda.page_parts import Copy, Part, Parts, copies, parts_of

PAGE_BYTES, N_PAGES = 96, 6
Memory = npt.NDArray[np.uint8]


def addresses(ranks: int, seed: int) -> list[int]:
    """In a memory of bytes, anywhere, as long as parts do not overlap."""
    places = np.random.default_rng(seed).permutation(ranks)
    return [int(place) * 1000 + 17 for place in places]


def carry_out(
    found: Sequence[Copy], source: Memory, src: PageIds, target: Memory, dst: PageIds
) -> None:
    for copy in found:
        for to, begin, size in zip(*copy.commands(src, dst), strict=True):
            target[to : to + size] = source[begin : begin + size]


def pages_in(memory: Memory, parts: Parts, pages: Sequence[int]) -> list[list[int]]:
    def held(part: Part, page: int) -> Memory:
        at = part.address + page * part.stride
        return memory[at : at + part.n_bytes]

    return [[int(b) for part in parts for b in held(part, page)] for page in pages]


@pytest.mark.parametrize("ours", [1, 2, 4])
@pytest.mark.parametrize("theirs", [1, 2, 3, 4])
def test_whole_pages_arrive_between_any_numbers_of_parts(ours: int, theirs: int) -> None:
    rng = np.random.default_rng(0)
    source, target = rng.integers(1, 256, (2, 4000), dtype=np.uint8)
    before = target.copy()
    here, there = (parts_of(addresses(n, n), PAGE_BYTES) for n in (ours, theirs))
    src, dst = np.array([5, 1, 2, 0]), np.array([0, 2, 3, 5])
    carry_out(copies(here, there), source, src, target, dst)
    assert pages_in(target, there, dst.tolist()) == pages_in(source, here, src.tolist())
    assert pages_in(target, there, [1, 4]) == pages_in(before, there, [1, 4])


def test_equal_parts_are_copied_in_runs_and_others_page_by_page() -> None:
    two, one = parts_of([0, 4000], PAGE_BYTES), parts_of([8000], PAGE_BYTES)
    src, dst = np.array([3, 4, 5, 0]), np.array([0, 1, 2, 5])
    half = PAGE_BYTES // 2
    assert [copy.commands(src, dst) for copy in copies(two, two)] == [
        ([0, 5 * half], [3 * half, 0], [3 * half, half]),
        ([4000, 4000 + 5 * half], [4000 + 3 * half, 4000], [3 * half, half]),
    ]
    assert [copy.commands(src, dst) for copy in copies(two, one)] == [
        ([to + PAGE_BYTES * d for d in dst], [begin + half * s for s in src], [half] * 4)
        for to, begin in ((8000, 0), (8000 + half, 4000))
    ]


def test_a_part_of_a_staging_is_as_far_apart_as_whole_pages() -> None:
    staged, ranks = (Part(5000, 0, PAGE_BYTES, PAGE_BYTES),), parts_of([0, 1000], PAGE_BYTES)
    first, second = copies(staged, ranks)
    assert first.source == Part(5000, 0, 48, 96)
    assert second.source == Part(5048, 48, 48, 96)
    assert (first.target, second.target) == ranks
