"""The policy's views of the workers, kept from one placement to the next.

A worker whose report, state or share of our work changed is marked; its view is made anew when the
next placement asks. The policy is not shown all workers but a shortlist that has its choice in it:
of each kind of worker the first in every order by which the policy chooses, and those that know the
prompt. So a placement looks at a handful of views, however many workers there are.

    kind    what decides whom a worker can be paired with: fingerprint, layout, roles
    orders  prefill: least backlog; decode: most free pages, in share of the pool; both: both
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from router.config import AdmissionConfig
from router.member import Member, MemberState
from router.membership import Membership
from router.order import Order
from router.policy import Need, WorkerView
from router.tally import Tally

KindKey = tuple[str, str, tuple[str, ...], bool, bool, int]


class Roster:
    """Workers that may get new work, by model. `n_looks` counts views that a search has touched."""

    def __init__(self, config: AdmissionConfig, members: Membership, tally: Tally) -> None:
        self.n_looks = 0
        self._config = config
        self._members = members
        self._tally = tally
        self._views: dict[int, WorkerView] = {}
        self._model_of: dict[int, str] = {}
        self._kinds: dict[str, dict[KindKey, _Kind]] = {}
        self._news: dict[str, _News] = {}  # by model

    def all(self, model: str) -> list[WorkerView]:
        """Every view of a model: for tests, and for comparison."""
        self.refresh()
        return [view for epoch, view in self._views.items() if self._model_of[epoch] == model]

    def view(self, epoch: int) -> WorkerView | None:
        """None: it may get no new work."""
        self.refresh()
        return self._views.get(epoch)

    def shortlist(self, need: Need, model: str) -> list[WorkerView]:
        """`place` and `place_decode` choose of these as they would of all."""
        self.refresh()
        chosen: dict[int, WorkerView] = {}
        for kind in self._kinds.get(model, {}).values():
            for view in kind.candidates(need):
                chosen[view.epoch] = view
        for epoch in need.cached_tokens:
            if self._model_of.get(epoch) == model:
                chosen[epoch] = self._views[epoch]
        self.n_looks += len(chosen)
        return list(chosen.values())

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
        view = self._view(member)
        self.n_looks += 1
        model = member.announce.model
        if view == old and model == self._model_of[epoch]:
            return
        if old is not None and (_kind_key(old), self._model_of[epoch]) != (_kind_key(view), model):
            self._drop(old)
            old = None
        self._views[epoch] = view
        self._model_of[epoch] = model
        kinds = self._kinds.setdefault(model, {})
        key = _kind_key(view)
        if key not in kinds:
            kinds[key] = _Kind(self._views)
        kinds[key].put(view)
        if view.prefills and (old is None or _has_grown_for_prompts(old, view)):
            self._news_of(model).prefill[epoch] = view
        if view.decodes and (old is None or _has_grown_for_rows(old, view)):
            self._news_of(model).decode[epoch] = view

    def _drop(self, view: WorkerView) -> None:
        model = self._model_of.pop(view.epoch)
        del self._views[view.epoch]
        kinds = self._kinds[model]
        key = _kind_key(view)
        kinds[key].remove(view)
        if not kinds[key].n_workers:
            del kinds[key]
        if not kinds:
            del self._kinds[model]
        self._news_of(model).has_left = True

    def _news_of(self, model: str) -> _News:
        return self._news.setdefault(model, _News())

    def _view(self, member: Member) -> WorkerView:
        told, load, share = member.announce, member.load, self._tally.of(member.epoch)
        pages = load.pages
        # what we promised, or what the worker reports, if that is more: others use it too
        taken = pages.used + pages.pinned + pages.quarantined + load.reserved_growth_pages
        return WorkerView(
            epoch=member.epoch,
            worker_id=member.worker_id,
            fingerprint=told.fingerprint,
            prefills=member.prefills,
            # a worker that wants a fence takes no reservations
            decodes=member.decodes and not load.fence_wanted,
            n_pages=told.n_pages,
            page_tokens=told.page_tokens,
            layout=told.layout,
            makes_dtypes=tuple(told.makes_dtypes),
            occupied_pages=max(share.pages, taken),
            rows=share.rows,
            max_rows=told.decode_rows + self._config.extra_rows,
            backlog_tokens=max(share.backlog_tokens, load.prefill_queue_tokens),
            max_backlog_tokens=self._config.max_prefill_backlog_tokens,
            last_given=member.last_given,
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
            self._by_free.put(epoch, (is_full, free, view.rows, name))
        if view.prefills and view.decodes:
            self._by_both.put(epoch, (view.backlog_tokens, free, view.rows, name))
        self._by_room.put(epoch, 0 if is_full else -view.free_pages)

    def remove(self, view: WorkerView) -> None:
        self.n_workers -= 1
        self._by_room.remove(view.epoch)
        if view.prefills:
            self._by_backlog.remove(view.epoch)
        if view.decodes:
            self._by_free.remove(view.epoch)
        if view.prefills and view.decodes:
            self._by_both.remove(view.epoch)

    def candidates(self, need: Need) -> Iterator[WorkerView]:
        n_tokens = need.n_tokens + need.growth_tokens

        def can_prefill(view: WorkerView) -> bool:
            return view.holds(need.n_tokens)

        def can_decode(view: WorkerView) -> bool:
            return view.has_room(n_tokens)

        yield from self._first(self._by_backlog, need, can_prefill)
        if self._has_room(n_tokens):
            yield from self._first(self._by_free, need, can_decode)
            yield from self._first(
                self._by_both, need, lambda view: can_prefill(view) and can_decode(view)
            )
        else:  # they are there all the same: it is not avoided ones that must do
            yield from self._first(self._by_free, need, lambda view: True)

    def _has_room(self, n_tokens: int) -> bool:
        for epoch in self._by_room:
            return self._views[epoch].has_room(n_tokens)
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


def _kind_key(view: WorkerView) -> KindKey:
    return (
        view.fingerprint,
        view.layout,
        view.makes_dtypes,
        view.prefills,
        view.decodes,
        view.page_tokens,
    )


def _has_grown_for_prompts(old: WorkerView, new: WorkerView) -> bool:
    return new.backlog_tokens < old.backlog_tokens or new.n_pages > old.n_pages


def _has_grown_for_rows(old: WorkerView, new: WorkerView) -> bool:
    is_room = new.free_pages > old.free_pages or new.rows < old.rows
    return is_room or new.max_rows > old.max_rows
