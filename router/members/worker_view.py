"""A worker as placement sees it, and what a request needs of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twolane.layout import can_feed
from twolane.router.members.model import pages_for


@dataclass(frozen=True, slots=True)
class PageOrigin:
    """What decides whom a prefill worker's pages can go to."""

    fingerprint: str
    layout: str
    makes_dtypes: tuple[str, ...]

    def can_feed(self, worker: WorkerView) -> bool:
        is_same_model = self.fingerprint == worker.fingerprint
        return is_same_model and can_feed(self.layout, worker.layout, self.makes_dtypes)


@dataclass(slots=True, kw_only=True)
class WorkerView:
    """One worker that may be given new work, as the router sees it. Nobody changes it: it is not
    frozen because that would take twice as long, and four are made for a request."""

    epoch: int
    worker_id: str
    fingerprint: str
    prefills: bool
    decodes: bool
    n_pages: int
    page_tokens: int
    layout: str = ""  # of its pages; empty: not told
    makes_dtypes: tuple[str, ...] = ()  # of other layouts' pages, out of its own
    occupied_pages: int = 0  # held or promised
    rows: int = 0  # requests on their way to it or running
    max_rows: int = 1
    backlog_tokens: int = 0  # prompts assigned and not yet through
    max_backlog_tokens: int = 1
    last_given: int = 0  # the number of the latest prompt that it was given
    host: str = ""  # its host's identity; empty: not told

    @property
    def free_pages(self) -> int:
        return self.n_pages - self.occupied_pages

    @property
    def used_share(self) -> float:
        """Of its pages."""
        return self.occupied_pages / self.n_pages

    def has_room(self, n_tokens: int) -> bool:
        return self.rows < self.max_rows and self.free_pages >= pages_for(
            n_tokens, self.page_tokens
        )

    def holds(self, n_tokens: int) -> bool:
        """If nothing else was there."""
        return pages_for(n_tokens, self.page_tokens) <= self.n_pages

    def can_prefill(self, need: Need) -> bool:
        return self.holds(need.n_tokens) and self.backlog_tokens < self.max_backlog_tokens

    @property
    def giver(self) -> PageOrigin:
        return PageOrigin(self.fingerprint, self.layout, self.makes_dtypes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one request asks of a pair of workers."""

    n_tokens: int  # to prefill
    growth_tokens: int  # to reserve for the answer
    cached_tokens: Mapping[int, int] = field(default_factory=dict)  # by epoch: likely known there
    avoid: frozenset[int] = frozenset()
