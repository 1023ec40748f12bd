"""The policy's views of the workers, kept from one placement to the next.

A worker whose report, state or share of our work changed is marked; its view is made anew when the
next placement asks. The policy is not shown all workers but a shortlist that has its choice in it:
of each kind of worker the first in every order by which the policy chooses, those that know the
prompt, and the first decode worker on the host of each prefill worker among these. So a
placement looks at a handful of views, however many workers there are.

    kind    what decides whom a worker can be paired with: fingerprint, layout, roles
    orders  prefill: least backlog; decode: most free pages, in share of the pool; both: both
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from twolane.router.config import AdmissionConfig
from twolane.router.dispatch.load_tally import Tally
from twolane.router.members.member import Member, MemberState
from twolane.router.members.membership import Membership
from twolane.router.members.worker_view import Need, WorkerView
from twolane.router.order import Order
from twolane.v1 import cluster_pb2


class KindKey(NamedTuple):
    """What the workers of a kind have in common."""

    fingerprint: str
    layout: str
    makes_dtypes: tuple[str, ...]
    prefills: bool
    decodes: bool
    page_tokens: int


class _Facts(NamedTuple):
    """Of a worker, until it announces something else or wants a fence."""

    announce: cluster_pb2.AnnounceRequest
    wants_fence: bool
    worker_id: str
    model: str
    kind: KindKey

    @property
    def place(self) -> tuple[str, KindKey, str]:
        """Among whom it is."""
        return self.model, self.kind, self.announce.host_identity


class Roster:
    """Workers that may get new work, by model. `n_looks` counts views that a search has touched."""

    def __init__(self, config: AdmissionConfig, members: Membership, tally: Tally) -> None:
        self.n_looks = 0
        self._config = config
        self._members = members
        self._tally = tally
        self._views: dict[int, WorkerView] = {}
        self._facts: dict[int, _Facts] = {}  # of those that have a view
        self._kinds: dict[str, dict[KindKey, _Kind]] = {}
        self._news: dict[str, _News] = {}  # by model

    def all(self, model: str) -> list[WorkerView]:
        """Every view of a model: for tests, and for comparison."""
        self.refresh()
        return [view for epoch, view in self._views.items() if self._facts[epoch].model == model]

    def view(self, epoch: int) -> WorkerView | None:
        """None: it may get no new work."""
        self.refresh()
        return self._views.get(epoch)

    def shortlist(self, need: Need, model: str, host: str = "") -> list[WorkerView]:
        """`place` and `place_decode` choose of these as they would of all; the second for pages
        that come from `host`."""
        self.refresh()
        kinds, n_tokens = self._kinds.get(model, {}).values(), need.n_tokens + need.growth_tokens
        if not any(kind.has_room(n_tokens) for kind in kinds):
            return []  # as nothing can be chosen
        chosen: dict[int, WorkerView] = {}
        for kind in kinds:
            for view in kind.candidates(need):
                chosen[view.epoch] = view
        for epoch in need.cached_tokens:
            facts = self._facts.get(epoch)
            if facts is not None and facts.model == model:
                chosen[epoch] = self._views[epoch]
        hosts = {view.host for view in chosen.values() if view.prefills} | {host}
        for host in hosts - {""}:
            for kind in kinds:
                for view in kind.near(host, need):
                    chosen[view.epoch] = view
        self.n_looks += len(chosen)
        return list(chosen.values())

    def has_news(self, model: str) -> bool:
        """Whether `has_news_for` may say yes."""
        self.refresh()
        return model in self._news

    def has_news_for(self, need: Need, model: str) -> bool:
        """Whether what found no place at the last call may find one now: a worker has got room
        for it, or is there no more (others then do what was not asked of them)."""
        self.refresh()
        news = self._news.pop(model, None)
        if news is None:
            return False
        self.n_looks += len(news.prefill) + len(news.decode)
        n_tokens = need.n_tokens + need.growth_tokens
        return (
            news.has_left
            or any(view.has_room(n_tokens) for view in news.decode.values())
            or any(view.can_prefill(need) for view in news.prefill.values())
        )

    def forget_news(self) -> None:
        """Nobody waits."""
        self._news.clear()

    def refresh(self) -> None:
        """Make the views anew that may have changed."""
        for changed in (self._members.changed, self._tally.changed):
            while changed:
                self._update(changed.pop())

    def _update(self, epoch: int) -> None:
        member = self._members.get(epoch)
        old = self._views.get(epoch)
        if member is None or member.state is not MemberState.ALIVE:
            if old is not None:
                self._drop(old)
            return
        known = self._facts.get(epoch)
        facts = _facts(member, known)
        view = self._view(member, facts)
        self.n_looks += 1
        if old is not None and known is not None and known.place != facts.place:
            self._drop(old)
            old = None
        self._facts[epoch] = facts
        if view == old:
            return
        self._views[epoch] = view
        kinds = self._kinds.get(facts.model)
        if kinds is None:
            kinds = self._kinds[facts.model] = {}
        kind = kinds.get(facts.kind)
        if kind is None:
            kind = kinds[facts.kind] = _Kind(self._views)
        kind.put(view)
        if view.prefills and (old is None or _has_grown_for_prompts(old, view)):
            self._news_of(facts.model).prefill[epoch] = view
        if view.decodes and (old is None or _has_grown_for_rows(old, view)):
            self._news_of(facts.model).decode[epoch] = view

    def _drop(self, view: WorkerView) -> None:
        facts = self._facts.pop(view.epoch)
        del self._views[view.epoch]
        kinds = self._kinds[facts.model]
        kind = kinds[facts.kind]
        kind.remove(view)
        if not kind.n_workers:
            del kinds[facts.kind]
        if not kinds:
            del self._kinds[facts.model]
        self._news_of(facts.model).has_left = True

    def _news_of(self, model: str) -> _News:
        return self._news.setdefault(model, _News())

    def _view(self, member: Member, facts: _Facts) -> WorkerView:
        told, load, kind = facts.announce, member.load, facts.kind
        epoch = told.worker.epoch
        share = self._tally.of(epoch)
        pages = load.pages
        # what we promised, or what the worker reports, if that is more: others use it too
        taken = pages.used + pages.pinned + pages.quarantined + load.reserved_growth_pages
        return WorkerView(
            epoch=epoch,
            worker_id=facts.worker_id,
            fingerprint=kind.fingerprint,
            prefills=kind.prefills,
            decodes=kind.decodes,
            n_pages=told.n_pages,
            page_tokens=kind.page_tokens,
            layout=kind.layout,
            makes_dtypes=kind.makes_dtypes,
            occupied_pages=max(share.pages, taken),
            rows=share.rows,
            max_rows=told.decode_rows + self._config.extra_rows,
            backlog_tokens=max(share.backlog_tokens, load.prefill_queue_tokens),
            max_backlog_tokens=self._config.max_prefill_backlog_tokens,
            last_given=member.last_given,
            host=told.host_identity,
        )


@dataclass(slots=True)
class _News:
    """Since somebody last asked. By epoch: nobody may ask for long, of a model that needs not wait
    while another's requests do."""

    has_left: bool = False  # some worker
    prefill: dict[int, WorkerView] = field(default_factory=dict)  # have got room for a prompt
    decode: dict[int, WorkerView] = field(default_factory=dict)  # for a row


class _Kind:
    """Workers that differ in their room alone."""

    def __init__(self, views: dict[int, WorkerView]) -> None:
        self.n_workers = 0
        self._views = views
        self._by_backlog = Order()
        self._by_free = Order()
        self._by_free_at: dict[str, Order] = {}  # the same, by host
        self._by_both = Order()
        self._by_room = Order()  # the most free pages ahead, of those that take rows

    def put(self, view: WorkerView) -> None:
        epoch, name = view.epoch, view.worker_id
        free = -view.free_pages / view.n_pages
        is_full = view.rows >= view.max_rows
        if epoch not in self._by_room:
            self.n_workers += 1
        if view.prefills:
            self._by_backlog.put(epoch, (view.backlog_tokens, view.last_given, name))
        if view.decodes:
            by_free = (is_full, free, view.rows, name)
            self._by_free.put(epoch, by_free)
            if view.host:
                self._by_free_at.setdefault(view.host, Order()).put(epoch, by_free)
        if view.prefills and view.decodes:
            self._by_both.put(epoch, (view.backlog_tokens, free, view.rows, name))
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
        else:  # they are there all the same: it is not avoided ones that must do
            yield from self._first(self._by_free, need, lambda view: True)

    def near(self, host: str, need: Need) -> Iterator[WorkerView]:
        """Decode workers on that host."""
        n_tokens = need.n_tokens + need.growth_tokens
        order = self._by_free_at.get(host)
        if order is not None:
            yield from self._first(order, need, lambda view: view.has_room(n_tokens))

    def has_room(self, n_tokens: int) -> bool:
        """Whether a worker takes a row of so many tokens, avoided or not."""
        for epoch in self._by_room:
            view = self._views[epoch]
            return view.decodes and view.has_room(n_tokens)
        return False

    def _first(
        self, order: Order, need: Need, fits: Callable[[WorkerView], bool]
    ) -> Iterator[WorkerView]:
        """The first that is not avoided and fits, the first that is not avoided at all, and the
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


def _facts(member: Member, known: _Facts | None) -> _Facts:
    """`known`, if that is still so."""
    told, wants_fence = member.announce, bool(member.load.fence_wanted)
    if known is not None and known.announce is told and known.wants_fence == wants_fence:
        return known
    kind = KindKey(
        fingerprint=told.fingerprint,
        layout=told.layout,
        makes_dtypes=tuple(told.makes_dtypes),
        prefills=member.prefills,
        decodes=member.decodes and not wants_fence,  # it takes no reservations
        page_tokens=told.page_tokens,
    )
    return _Facts(told, wants_fence, member.worker_id, told.model, kind)


def _has_grown_for_prompts(old: WorkerView, new: WorkerView) -> bool:
    return new.backlog_tokens < old.backlog_tokens or new.n_pages > old.n_pages


def _has_grown_for_rows(old: WorkerView, new: WorkerView) -> bool:
    is_room = new.free_pages > old.free_pages or new.rows < old.rows
    return is_room or new.max_rows > old.max_rows
