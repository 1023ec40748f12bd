"""Which prefill workers lately had which beginning of a prompt: a hint for the policy, no more.

A prompt's beginnings are cut where a hash is taken, finely at first and coarsely behind:

    |64|64| … |64|    512    |    512    | … |  512  | rest, in no hash
    0           1024                                        of the whole prompt, however long

Each hash is of all tokens before it, so a beginning is known only where all shorter ones are.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence

BLOCK_TOKENS = 64
COARSE_BLOCK_TOKENS = 512
N_FINE_BLOCKS = 16  # then coarse ones
MAX_OWNERS = 4  # of one beginning; the one that had it longest ago goes
ENTRY_BYTES = 96  # of memory an entry takes, its part of the tables included
MAX_BYTES = 96 * 1024 * 1024  # so about a million entries
_FORGET_AT_ONCE = 256  # entries: a generation of half a million must not go in one pause

Owners = tuple[int, ...]  # epochs, the latest first


class PrefixAffinity:
    """From the hash of a prompt's beginning to its owners, in two generations: what is used moves
    to the young one; when that is full, it becomes the old one, whose rest is forgotten."""

    def __init__(
        self,
        max_entries: int = MAX_BYTES // ENTRY_BYTES,
        is_there: Callable[[int], bool] = lambda epoch: True,
    ) -> None:
        """`is_there` says of an epoch whether it may still have what it had."""
        self._is_there = is_there
        self._young: dict[int, Owners] = {}
        self._old: dict[int, Owners] = {}
        self._forgotten: dict[int, Owners] = {}  # let go of bit by bit
        self._most_young = max(1, max_entries // 2)

    def __len__(self) -> int:
        return len(self._young) + len(self._old) + len(self._forgotten)

    def lookup(self, hashes: Sequence[int]) -> dict[int, int]:
        """By epoch: tokens at the prompt's beginning that this worker had lately."""
        known: dict[int, int] = {}
        for n_blocks, name in enumerate(hashes, start=1):
            owners = self._young.get(name) or self._old.get(name)
            if owners is None:
                return known
            for epoch in owners:
                known[epoch] = tokens_of(n_blocks)
        return known

    def record(self, hashes: Sequence[int], epoch: int) -> None:
        """The worker is being given a prompt with these beginnings."""
        before: Owners | None = None
        owners: Owners = (epoch,)
        for name in hashes:
            had = self._young.get(name) or self._old.pop(name, None)
            if had is not before:  # long runs of beginnings have the same owners, as one object
                before = had
                owners = self._with_first(epoch, had or ())
            self._young[name] = owners
        self._age(len(hashes))

    def _with_first(self, epoch: int, owners: Owners) -> Owners:
        if owners[:1] == (epoch,):
            return owners
        others = [other for other in owners if other != epoch and self._is_there(other)]
        return (epoch, *others[: MAX_OWNERS - 1])

    def _age(self, n_new: int) -> None:
        for _ in range(min(len(self._forgotten), max(_FORGET_AT_ONCE, 2 * n_new))):
            self._forgotten.popitem()
        if len(self._young) >= self._most_young:
            self._forgotten.update(self._old)
            self._old, self._young = self._young, {}


def tokens_of(n_blocks: int) -> int:
    """In the first so many blocks."""
    n_coarse = max(0, n_blocks - N_FINE_BLOCKS)
    return (n_blocks - n_coarse) * BLOCK_TOKENS + n_coarse * COARSE_BLOCK_TOKENS


def prefix_hashes(token_ids: Sequence[int], tenant: str = "") -> array[int]:
    """A chain hash, of 64 bits, of each beginning of a whole number of blocks. Those of one tenant
    tell nothing of another's prompts: they begin with its name."""
    ids = token_ids if isinstance(token_ids, array) else array("i", token_ids[:])
    raw = memoryview(ids).cast("B")
    chain = hashlib.blake2b(tenant.encode(), digest_size=8)  # guard: tenant of a prefix
    names = array("Q")
    for start, end in _blocks(len(ids)):
        chain.update(raw[start * ids.itemsize : end * ids.itemsize])
        names.frombytes(chain.copy().digest())
    return names


def _blocks(n_tokens: int) -> Iterator[tuple[int, int]]:
    n_fine = min(n_tokens, tokens_of(N_FINE_BLOCKS)) // BLOCK_TOKENS * BLOCK_TOKENS
    for start in range(0, n_fine, BLOCK_TOKENS):
        yield start, start + BLOCK_TOKENS
    for start in range(n_fine, n_tokens - COARSE_BLOCK_TOKENS + 1, COARSE_BLOCK_TOKENS):
        yield start, start + COARSE_BLOCK_TOKENS
