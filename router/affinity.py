"""Which prefill worker lately had which beginning of a prompt: a hint for the policy, no more."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

BLOCK_TOKENS = 64
MAX_BLOCKS = 64  # of one prompt; longer beginnings in common are rare
MAX_ENTRIES = 16_384


class PrefixAffinity:
    """A small least-recently-used map from the hash of a prompt's beginning to a worker's epoch."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._epoch_of: OrderedDict[bytes, int] = OrderedDict()
        self._max_entries = max_entries

    def lookup(self, hashes: Sequence[bytes]) -> dict[int, int]:
        """By epoch: tokens at the prompt's beginning that this worker had lately."""
        known: dict[int, int] = {}
        for n, name in enumerate(hashes, start=1):
            epoch = self._epoch_of.get(name)
            if epoch is None:
                break
            known[epoch] = n * BLOCK_TOKENS
        return known

    def record(self, hashes: Sequence[bytes], epoch: int) -> None:
        """The worker is being given a prompt with these beginnings."""
        for name in reversed(hashes):  # short beginnings last: they are forgotten last
            self._epoch_of[name] = epoch
            self._epoch_of.move_to_end(name)
        while len(self._epoch_of) > self._max_entries:
            self._epoch_of.popitem(last=False)


def prefix_hashes(token_ids: Sequence[int]) -> tuple[bytes, ...]:
    """A chain hash of each beginning of a whole number of blocks."""
    n_blocks = min(len(token_ids) // BLOCK_TOKENS, MAX_BLOCKS)
    raw = array("I", token_ids[: n_blocks * BLOCK_TOKENS]).tobytes()
    block_bytes = BLOCK_TOKENS * array("I").itemsize
    chain = hashlib.blake2b(digest_size=16)
    names = []
    for at in range(n_blocks):
        chain.update(raw[at * block_bytes : (at + 1) * block_bytes])
        names.append(chain.copy().digest())
    return tuple(names)
