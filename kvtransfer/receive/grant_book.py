"""Every grant of a receiver: the one place where its pages are taken, quarantined and freed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from twolane.kvtransfer.config import ReceiverConfig
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.page_authority import PageAuthority
from twolane.kvtransfer.receive.grant import GrantState, InGrant
from twolane.kvtransfer.retry import Retry
from twolane.kvtransfer.transport import Landing

GrantPolicy = Callable[[Key, int], bool]  # may n pages be taken for this key now?
OnRevoked = Callable[[Key], None]  # its grant is withdrawn, and pages reserved for it are free


class GrantBook:
    """Open and revoked grants, by generation. A generation is never used twice."""

    def __init__(
        self,
        pages: PageAuthority,
        may_grant: GrantPolicy,
        on_revoked: OnRevoked,
        config: ReceiverConfig,
    ) -> None:
        self._pages = pages
        self._may_grant = may_grant
        self._on_revoked = on_revoked
        self._config = config
        self._generations = itertools.count(1)
        self._of: dict[int, InGrant] = {}
        self._cap = config.quarantine_cap_pages or max(1, pages.n_pages // 2)

    # -- figures ----------------------------------------------------------------------------

    @property
    def quarantined_pages(self) -> int:
        return sum(len(grant.pages) for grant in self.revoked())

    @property
    def is_at_cap(self) -> bool:
        """Too many pages are in quarantine: no reservation is granted."""
        return self.quarantined_pages >= self._cap

    def find(self, generation: int) -> InGrant | None:
        return self._of.get(generation)

    def revoked(self) -> list[InGrant]:
        """Grants whose pages are in quarantine."""
        return [grant for grant in self._of.values() if not grant.is_open]

    def landings(self) -> list[Landing]:
        """The landings of all grants, of all peers; may repeat."""
        return [grant.landing for grant in self._of.values()]

    def open_generations(self) -> set[int]:
        return {number for number, grant in self._of.items() if grant.is_open}

    def hurry(self, sender_epoch: int, now: float) -> None:
        """The link is back: every Revoke to that sender is due now."""
        for grant in self.revoked():
            if grant.key.sender_epoch == sender_epoch:
                grant.retry = Retry(self._config.lease, now)

    def revokes_due(self, now: float) -> list[InGrant]:
        """Grants whose Revoke must be sent again now."""
        return [grant for grant in self.revoked() if grant.retry.is_due(now)]

    # -- moves ------------------------------------------------------------------------------

    def try_open(
        self, key: Key, n_pages: int, prefix_hashes: Sequence[bytes], landing: Landing
    ) -> InGrant | None:
        """Take pages for a row of n_pages, those in the prefix cache first. None: no room now.

        The cached pages are referenced from now on, so that the skipped ones cannot be evicted.
        """
        skipped = self._pages.match(prefix_hashes)
        n_new = n_pages - len(skipped)
        taken = self._pages.try_take(n_new) if self._may_grant(key, n_new) else None
        if taken is None:
            self._pages.release(skipped)
            return None
        retry = Retry(self._config.lease, 0.0)
        grant = InGrant(key, next(self._generations), skipped, taken, landing, retry)
        self._of[grant.generation] = grant
        landing.grant(key.sender_epoch, grant.generation, np.asarray(taken, dtype=np.int64))
        return grant

    def keep(self, grant: InGrant) -> list[int]:
        """All is verified. Returns its pages in row order; the caller owns one reference each."""
        assert grant.is_verified
        grant.life.advance(GrantState.KEPT)
        grant.landing.revoke(grant.generation)  # all pages were claimed: this only removes an entry
        del self._of[grant.generation]
        return grant.skipped + grant.pages

    def revoke(self, grant: InGrant, reason: str, now: float) -> None:
        """Withdraw an open grant. Its pages wait in quarantine for proof."""
        grant.life.advance(GrantState.REVOKED)
        grant.revoked_at = now
        grant.reason = reason
        grant.retry.start(now)
        self._pages.release(grant.skipped)
        self._pages.quarantine(grant.pages)
        grant.landing.revoke(grant.generation)
        self._on_revoked(grant.key)
        self._settle(grant, is_proven=not grant.pages)

    def on_stopped(self, generation: int) -> None:
        """This process no longer writes to the grant: proof, unless the sender writes."""
        grant = self._of.get(generation)
        if grant is not None and not grant.is_open:
            self._settle(grant, is_proven=not grant.landing.sender_writes)

    def on_sender_stopped(self, grant: InGrant) -> None:
        """The sender no longer writes to the revoked grant: proof, if it is the writer."""
        is_proven = grant.landing.sender_writes  # guard: writer's proof
        self._settle(grant, is_proven=is_proven)

    def _settle(self, grant: InGrant, *, is_proven: bool) -> None:
        if grant.life.state is not GrantState.REVOKED:
            return
        if not is_proven:  # guard: drain wait
            return
        grant.life.advance(GrantState.FREED)
        del self._of[grant.generation]
        self._pages.absolve(grant.pages)

    # -- fences -----------------------------------------------------------------------------

    def fence_wanted(self, now: float) -> list[int]:
        """Epochs whose end would free pages, when the cap is reached or they wait too long."""
        waiting = [grant for grant in self.revoked() if grant.landing.sender_writes]
        if not self.is_at_cap:
            old = now - self._config.fence_after_s
            waiting = [grant for grant in waiting if grant.revoked_at <= old]
        return sorted({grant.key.sender_epoch for grant in waiting})
