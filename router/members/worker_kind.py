"""The workers of one kind, in every order by which the policy chooses among them.

They differ only in their room. Of each order, a placement needs the first worker that fits, and the
first at all: so it reads a few views, however many workers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from twolane.router.members.worker_view import Need, WorkerView
from twolane.router.order import Order


class KindKey(NamedTuple):
    """The properties that all workers of a kind share."""

    fingerprint: str
    layout: str
    makes_dtypes: tuple[str, ...]
    prefills: bool
    decodes: bool
    page_tokens: int


class WorkerKind:
    """`views` are all views, by epoch, also of other kinds. `decode_cost` orders workers for a row,
    least first."""

    def __init__(
        self,
        views: dict[int, WorkerView],
        decode_cost: Callable[[WorkerView], tuple[float, int, str]],
    ) -> None:
        self._decode_cost = decode_cost
        self.n_workers = 0
        self._views = views
        self._by_backlog = Order()
        self._by_free = Order()
        self._by_free_at: dict[str, Order] = {}  # as `_by_free`, by host
        self._by_both = Order()
        self._by_room = Order()  # workers that accept rows, most free pages first

    def put(self, view: WorkerView) -> None:
        epoch, is_full = view.epoch, view.rows >= view.max_rows
        if epoch not in self._by_room:
            self.n_workers += 1
        if view.prefills:
            self._by_backlog.put(epoch, *view.backlog_rank, view.last_given, view.rank)
        if view.decodes:
            cost = self._decode_cost(view)
            self._by_free.put(epoch, is_full, *cost)
            if view.host:
                self._by_free_at.setdefault(view.host, Order()).put(epoch, is_full, *cost)
            if view.prefills:
                self._by_both.put(epoch, *view.backlog_rank, *cost)
        self._by_room.put(epoch, 0 if is_full or not view.decodes else -view.free_pages)

    def remove(self, view: WorkerView) -> None:
        self.n_workers -= 1
        self._by_room.remove(view.epoch)
        if view.prefills:
            self._by_backlog.remove(view.epoch)
        if view.decodes:
            self._by_free.remove(view.epoch)
            if view.host:
                self._by_free_at[view.host].remove(view.epoch)
        if view.prefills and view.decodes:
            self._by_both.remove(view.epoch)

    def candidates(self, need: Need) -> Iterator[WorkerView]:
        n_tokens = need.n_tokens + need.growth_tokens

        def can_prefill(view: WorkerView) -> bool:
            return view.holds(need.n_tokens)

        def can_decode(view: WorkerView) -> bool:
            return view.has_room(n_tokens)

        yield from self._first(self._by_backlog, need, can_prefill)
        if self.has_room(n_tokens):
            yield from self._first(self._by_free, need, can_decode)
            yield from self._first(
                self._by_both, need, lambda view: can_prefill(view) and can_decode(view)
            )
            yield from self._first(
                self._by_both,
                need,
                lambda view: view.beside_tokens is None or view.can_prefill_beside(need),
            )
        else:  # full, but present: avoided workers must not be used in their place
            yield from self._first(self._by_free, need, lambda view: True)

    def near(self, host: str, need: Need) -> Iterator[WorkerView]:
        """The first decode workers on `host`."""
        n_tokens = need.n_tokens + need.growth_tokens
        order = self._by_free_at.get(host)
        if order is not None:
            yield from self._first(order, need, lambda view: view.has_room(n_tokens))

    def has_room(self, n_tokens: int) -> bool:
        """Whether some worker, avoided or not, has room for a row of `n_tokens`."""
        for epoch in self._by_room:
            view = self._views[epoch]
            return view.decodes and view.has_room(n_tokens)
        return False

    def _first(
        self, order: Order, need: Need, fits: Callable[[WorkerView], bool]
    ) -> Iterator[WorkerView]:
        """The first worker that is not avoided and fits, the first that is not avoided, and the
        avoided ones before them."""
        is_first = True
        for epoch in order:
            view = self._views[epoch]
            if epoch in need.avoid:
                yield view
            elif fits(view):
                yield view
                return
            elif is_first:
                is_first = False
                yield view
