"""This router's load on each worker: rows, promised pages, prompts not computed yet.

It is kept as sums, because the policy reads it at every placement; `check_integrity` recounts it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twolane.router.members.model import pages_for
from twolane.router.requests.attempt import Attempt


@dataclass(slots=True)
class Share:
    """This router's load on one worker."""

    rows: int = 0  # attempts that it decodes or will decode
    pages: int = 0  # promised to them, and to prompts that it computes for other workers
    backlog_prompts: int = 0  # assigned to it and not computed yet
    backlog_tokens: int = 0  # of those
    attempts: int = 0  # assigned to it in either role


class Tally:
    """The shares by epoch. An attempt counts once, from `add` to `remove`."""

    def __init__(self) -> None:
        self.changed: set[int] = set()  # epochs; the reader that caches shares empties it
        self._shares: dict[int, Share] = {}
        self._pages: dict[Attempt, int] = {}  # of every counted attempt
        self._in_backlog: set[Attempt] = set()
        # Whose prompt takes pages at a prefill worker that also decodes.
        self._held: set[Attempt] = set()

    def of(self, epoch: int) -> Share:
        """A worker's share. The caller must not change it."""
        return self._shares.get(epoch) or Share()

    def add(self, attempt: Attempt) -> None:
        """Count a placed attempt, whose prompt is not computed yet."""
        assert attempt not in self._pages
        pages = pages_for(attempt.promised_tokens, attempt.page_tokens)
        self._pages[attempt] = pages
        self._in_backlog.add(attempt)
        decode = self._shares.setdefault(attempt.decode_epoch, Share())
        decode.rows += 1
        decode.pages += pages
        prefill = self._shares.setdefault(attempt.prefill_epoch, Share())
        prefill.backlog_prompts += 1
        prefill.backlog_tokens += attempt.n_tokens
        for epoch in attempt.epochs():
            self._shares[epoch].attempts += 1
            self.changed.add(epoch)
        if attempt.prefill_pages:
            prefill.pages += attempt.prefill_pages
            self._held.add(attempt)

    def handed_over(self, attempt: Attempt) -> None:
        """Record that the decode worker has the attempt. May be called again."""
        if attempt in self._held:
            self._held.remove(attempt)
            self._shares[attempt.prefill_epoch].pages -= attempt.prefill_pages
            self.changed.add(attempt.prefill_epoch)

    def through(self, attempt: Attempt) -> None:
        """Record that its prompt is computed. May be called again."""
        if attempt in self._in_backlog:
            self._in_backlog.remove(attempt)
            share = self._shares[attempt.prefill_epoch]
            share.backlog_prompts -= 1
            share.backlog_tokens -= attempt.n_tokens
            self.changed.add(attempt.prefill_epoch)

    def grow(self, attempt: Attempt) -> None:
        """Count one more page for an attempt that has used up its promised pages."""
        attempt.promised_tokens += attempt.page_tokens
        if attempt in self._pages:
            self._pages[attempt] += 1
            self._shares[attempt.decode_epoch].pages += 1
            self.changed.add(attempt.decode_epoch)

    def remove(self, attempt: Attempt) -> None:
        """Stop counting an attempt that is over. May be called again."""
        pages = self._pages.pop(attempt, None)
        if pages is None:
            return
        self.through(attempt)
        self.handed_over(attempt)
        share = self._shares[attempt.decode_epoch]
        share.rows -= 1
        share.pages -= pages
        for epoch in attempt.epochs():
            self.changed.add(epoch)
            self._shares[epoch].attempts -= 1
            if not self._shares[epoch].attempts:
                del self._shares[epoch]

    def check_integrity(self, live: Iterable[Attempt]) -> None:
        """Raise AssertionError unless exactly the `live` attempts are counted, with the right
        sums."""
        fresh = Tally()
        for attempt in live:
            fresh.add(attempt)
            if attempt not in self._in_backlog:
                fresh.through(attempt)
            if attempt not in self._held:
                fresh.handed_over(attempt)
        counted, real = _nonzero(self._shares), _nonzero(fresh._shares)
        assert counted == real, f"counted {counted}, are {real}"


def _nonzero(shares: dict[int, Share]) -> dict[int, Share]:
    return {epoch: share for epoch, share in shares.items() if share != Share()}
