"""Who had the beginning of a prompt: long prompts, several owners, bounded memory."""

from __future__ import annotations

import random
import tracemalloc
from array import array

import pytest

from twolane.router.dispatch.affinity import (
    BLOCK_TOKENS,
    COARSE_BLOCK_TOKENS,
    ENTRY_BYTES,
    MAX_BYTES,
    MAX_OWNERS,
    N_FINE_BLOCKS,
    PrefixAffinity,
    prefix_hashes,
    tokens_of,
)

FINE_TOKENS = N_FINE_BLOCKS * BLOCK_TOKENS


def prompt_of(n_tokens: int, seed: int = 1) -> array[int]:
    rng = random.Random(seed)
    return array("i", [rng.randrange(150_000) for _ in range(n_tokens)])


def test_longest_beginning_that_a_worker_had_is_found() -> None:
    affinity = PrefixAffinity()
    prompt = list(range(1000, 1000 + 3 * BLOCK_TOKENS))
    affinity.record(prefix_hashes(prompt), 7)
    assert affinity.lookup(prefix_hashes(prompt)) == {7: 3 * BLOCK_TOKENS}
    other = prompt[: 2 * BLOCK_TOKENS] + [1] * BLOCK_TOKENS
    assert affinity.lookup(prefix_hashes(other)) == {7: 2 * BLOCK_TOKENS}
    assert affinity.lookup(prefix_hashes([1, 2, 3])) == {}


@pytest.mark.parametrize("n_tokens", [5, 64, 1_023, 1_024, 1_535, 1_536, 4_097, 131_072])
def test_hashes_cover_the_whole_prompt_but_for_a_part_of_the_last_block(n_tokens: int) -> None:
    prompt = prompt_of(n_tokens)
    hashes = prefix_hashes(prompt)
    block = BLOCK_TOKENS if n_tokens < FINE_TOKENS else COARSE_BLOCK_TOKENS
    assert 0 <= n_tokens - tokens_of(len(hashes)) < block
    assert prefix_hashes(list(prompt)) == hashes
    assert prefix_hashes(prompt + prompt)[: len(hashes)] == hashes
    assert len(set(hashes)) == len(hashes)


def test_one_token_changes_every_hash_behind_it() -> None:
    prompt = prompt_of(4_096)
    changed = array("i", prompt)
    changed[2_000] += 1
    same = [a == b for a, b in zip(prefix_hashes(prompt), prefix_hashes(changed), strict=True)]
    n_same = same.index(False)
    assert not any(same[n_same:])
    assert tokens_of(n_same) <= 2_000 < tokens_of(n_same + 1)


def test_several_workers_own_a_beginning_and_the_latest_are_kept() -> None:
    affinity = PrefixAffinity()
    hashes = prefix_hashes(prompt_of(2_048))
    for epoch in range(1, MAX_OWNERS + 2):
        affinity.record(hashes, epoch)
    assert set(affinity.lookup(hashes)) == set(range(2, MAX_OWNERS + 2))
    affinity.record(hashes[:4], 99)
    known = affinity.lookup(hashes)
    assert known[99] == 4 * BLOCK_TOKENS
    assert known[MAX_OWNERS + 1] == 2_048


def test_worker_that_is_gone_makes_room_for_another_owner() -> None:
    gone: set[int] = set()
    affinity = PrefixAffinity(is_there=lambda epoch: epoch not in gone)
    hashes = prefix_hashes(prompt_of(640))
    affinity.record(hashes, 1)
    gone.add(1)
    affinity.record(hashes, 2)
    assert affinity.lookup(hashes) == {2: 640}


def test_oldest_beginnings_are_forgotten_and_those_in_use_are_not() -> None:
    affinity = PrefixAffinity(max_entries=100)
    used = prefix_hashes([7] * BLOCK_TOKENS)
    first = prefix_hashes([8] * BLOCK_TOKENS)
    affinity.record(first, 3)
    for n in range(1_000):
        affinity.record(used, 1)
        affinity.record(prefix_hashes([9, n] * BLOCK_TOKENS), 2)
        assert len(affinity) <= 100 + 50
    assert affinity.lookup(used) == {1: BLOCK_TOKENS}
    assert affinity.lookup(first) == {}


def test_map_of_a_million_entries_is_bounded_in_bytes() -> None:
    assert MAX_BYTES // ENTRY_BYTES >= 1_000_000
    n_entries = 40_000
    rng = random.Random(2)
    tracemalloc.start()
    try:
        affinity = PrefixAffinity(max_entries=n_entries)
        most = 0
        for _ in range(3 * n_entries // 20):
            affinity.record(array("Q", [rng.getrandbits(64) for _ in range(20)]), rng.randrange(99))
            most = max(most, tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert most < n_entries * ENTRY_BYTES * 1.5, most / n_entries


def test_tenants_know_no_beginning_of_each_other() -> None:
    affinity = PrefixAffinity()
    prompt = prompt_of(2 * FINE_TOKENS)
    affinity.record(prefix_hashes(prompt, "red"), 7)
    assert affinity.lookup(prefix_hashes(prompt, "red"))
    for other in ("blue", ""):
        assert affinity.lookup(prefix_hashes(prompt, other)) == {}
    assert set(prefix_hashes(prompt, "red")).isdisjoint(prefix_hashes(prompt))
