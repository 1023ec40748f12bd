"""Remembers which prefill workers have recently had which prompt prefixes, as a hint for the
policy.

Prefixes end at block boundaries, with small blocks at first and large ones after them:

    |64|64| … |64|    512    |    512    | … |  512  | rest, in no hash
    0           1024                                        of the whole prompt, however long

Each hash covers all tokens before it, so a prefix can be found only if all shorter ones are.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence

BLOCK_TOKENS = 64
COARSE_BLOCK_TOKENS = 512
N_FINE_BLOCKS = 16  # followed by large ones
MAX_OWNERS = 4  # of one prefix; the one that had it longest ago is dropped
ENTRY_BYTES = 96  # memory of an entry, with its part of the tables
MAX_BYTES = 96 * 1024 * 1024  # enough for about a million entries
_FORGET_AT_ONCE = 256  # entries; freeing half a million in one go would block the event loop

Owners = tuple[int, ...]  # epochs, the latest first


class PrefixAffinity:
    """Maps hashes of prefixes to their owners, in two generations. Entries that are used move to
    the young generation. When it is full, it becomes the old one, and the previous old one is
    dropped."""

    def __init__(
        self,
        max_entries: int = MAX_BYTES // ENTRY_BYTES,
        is_there: Callable[[int], bool] = lambda epoch: True,
    ) -> None:
        """`is_there` returns whether a worker of that epoch may still have its prefixes."""
        self._is_there = is_there
        self._young: dict[int, Owners] = {}
        self._old: dict[int, Owners] = {}
        self._forgotten: dict[int, Owners] = {}  # freed in small steps
        self._most_young = max(1, max_entries // 2)

    def __len__(self) -> int:
        return len(self._young) + len(self._old) + len(self._forgotten)

    def lookup(self, hashes: Sequence[int]) -> dict[int, int]:
        """The number of tokens of the prompt's longest prefix that each worker has recently had, by
        epoch."""
        n_known: dict[int, int] = {}
        for n_blocks, name in enumerate(hashes, start=1):
            owners = self._young.get(name) or self._old.get(name)
            if owners is None:
                break
            for epoch in owners:
                n_known[epoch] = n_blocks
        return {epoch: tokens_of(n_blocks) for epoch, n_blocks in n_known.items()}

    def record(self, hashes: Sequence[int], epoch: int) -> None:
        """Record that a worker is assigned a prompt with these prefixes."""
        before: Owners | None = None
        owners: Owners = (epoch,)
        for name in hashes:
            had = self._young.get(name) or self._old.pop(name, None)
            if had is not before:  # runs of prefixes share one owners object
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
    """The number of tokens in the first `n_blocks` blocks."""
    n_coarse = max(0, n_blocks - N_FINE_BLOCKS)
    return (n_blocks - n_coarse) * BLOCK_TOKENS + n_coarse * COARSE_BLOCK_TOKENS


def as_array(token_ids: Sequence[int]) -> array[int]:
    """The ids of a prompt as four bytes each. They are packed as a whole, which takes two thirds of
    the time that `array` takes for one after the other."""
    ids = array("i")
    ids.frombytes(struct.pack(f"{len(token_ids)}i", *token_ids[:]))
    return ids


def prefix_hashes(token_ids: Sequence[int], tenant: str = "") -> array[int]:
    """The 64-bit chain hash of each prefix that ends at a block boundary. The chain begins with the
    tenant's name, so that one tenant's hashes reveal nothing about another's prompts."""
    ids = token_ids if isinstance(token_ids, array) else as_array(token_ids)
    raw = ids.tobytes()
    chain = hashlib.blake2b(tenant.encode(), digest_size=8)  # guard: tenant of a prefix
    names = []
    for start, end in _blocks(len(ids)):
        chain.update(raw[start * ids.itemsize : end * ids.itemsize])
        names.append(chain.copy().digest())
    return array("Q", b"".join(names))


def _blocks(n_tokens: int) -> Iterator[tuple[int, int]]:
    n_fine = min(n_tokens, tokens_of(N_FINE_BLOCKS)) // BLOCK_TOKENS * BLOCK_TOKENS
    for start in range(0, n_fine, BLOCK_TOKENS):
        yield start, start + BLOCK_TOKENS
    for start in range(n_fine, n_tokens - COARSE_BLOCK_TOKENS + 1, COARSE_BLOCK_TOKENS):
        yield start, start + COARSE_BLOCK_TOKENS
