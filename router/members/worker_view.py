"""A worker as placement sees it, and what a request needs from a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from twolane.layout import can_feed
from twolane.router.members.model import pages_for


@dataclass(frozen=True, slots=True)
class PageOrigin:
    """What decides which workers a prefill worker's pages can be sent to."""

    fingerprint: str
    layout: str
    makes_dtypes: tuple[str, ...]

    def can_feed(self, worker: WorkerView) -> bool:
        is_same_model = self.fingerprint == worker.fingerprint  # guard: one revision
        return is_same_model and can_feed(self.layout, worker.layout, self.makes_dtypes)


@dataclass(slots=True, kw_only=True)
class WorkerView:
    """A worker that may get new work, as the router sees it. Treat it as immutable: it is not
    frozen only because a frozen one takes twice as long to create, and each request creates
    four."""

    epoch: int
    worker_id: str
    fingerprint: str
    prefills: bool
    decodes: bool
    n_pages: int
    page_tokens: int
    layout: str = ""  # of its pages; empty: unknown
    makes_dtypes: tuple[str, ...] = ()  # into which it can convert its pages
    occupied_pages: int = 0  # in use or promised
    rows: int = 0  # requests assigned to it, running or not
    max_rows: int = 1
    backlog_tokens: int = 0  # prompts assigned and not computed yet
    max_backlog_tokens: int = 1
    has_enough: bool = False  # of this router's prompts, while it holds an SLO
    last_given: int = 0  # the number of the latest prompt assigned to it
    host: str = ""  # its host's identity; empty: unknown
    # Most tokens of prompts to compute beside its rows, where others only prefill; None: any.
    beside_tokens: int | None = None
    rank: str = ""  # decides between equals, differently at each router; empty: the worker's name

    def __post_init__(self) -> None:
        self.rank = self.rank or self.worker_id

    @property
    def free_pages(self) -> int:
        return self.n_pages - self.occupied_pages

    @property
    def used_share(self) -> float:
        """The share of its pages that is occupied."""
        return self.occupied_pages / self.n_pages

    def has_room(self, n_tokens: int) -> bool:
        return self.rows < self.max_rows and self.free_pages >= pages_for(
            n_tokens, self.page_tokens
        )

    def holds(self, n_tokens: int) -> bool:
        """Whether its pool could hold `n_tokens` if it were empty."""
        return pages_for(n_tokens, self.page_tokens) <= self.n_pages

    @property
    def is_behind(self) -> bool:
        """Whether prompts wait for other workers, or at the router."""
        return self.has_enough or self.backlog_tokens >= self.max_backlog_tokens

    @property
    def backlog_rank(self) -> tuple[bool, int]:
        """Least is best."""
        return self.is_behind, self.backlog_tokens

    def can_prefill(self, need: Need) -> bool:
        return self.holds(need.n_tokens) and not self.is_behind

    def can_prefill_beside(self, need: Need) -> bool:
        """Whether it may compute and decode the request: little is left to compute."""
        assert self.beside_tokens is not None
        to_compute = self.backlog_tokens + need.n_tokens - need.cached_tokens.get(self.epoch, 0)
        return to_compute <= self.beside_tokens and self.has_room(
            need.n_tokens + need.growth_tokens
        )

    @property
    def giver(self) -> PageOrigin:
        return PageOrigin(self.fingerprint, self.layout, self.makes_dtypes)


class Need(NamedTuple):
    """What one request needs from a pair of workers."""

    n_tokens: int  # to prefill
    growth_tokens: int  # to reserve for the answer
    # Probably in that worker's prefix cache, by epoch.
    cached_tokens: Mapping[int, int] = MappingProxyType({})
    avoid: frozenset[int] = frozenset()
