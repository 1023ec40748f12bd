"""Caches the policy's views of the workers between placements.

A worker whose report, state or load changes is marked, and its view is remade at the next
placement. The policy does not get all workers but a shortlist that contains its choice: of each
kind of worker, the first in every order by which the policy chooses; the workers that have the
prompt's prefix; and the first decode worker on the host of each prefill worker among these. So a
placement reads a few views, however many workers there are.

    kind     what decides with whom a worker can be paired: fingerprint, layout, roles
    orders   prefill: not behind, least backlog; decode: `policy.decode_cost`; both roles: both
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from twolane.router.config import AdmissionConfig
from twolane.router.dispatch.load_tally import Share, Tally
from twolane.router.dispatch.policy import decode_cost
from twolane.router.members.member import Member, MemberState
from twolane.router.members.membership import Membership
from twolane.router.members.worker_kind import KindKey, WorkerKind
from twolane.router.members.worker_view import Need, WorkerView
from twolane.v1 import cluster_pb2, worker_pb2

_LEAST_TOKEN_S = 1e-9  # of a prompt: less is no pace, and cannot be divided by


class _Facts(NamedTuple):
    """A worker's facts, valid until its announce changes or it needs a fence."""

    announce: cluster_pb2.AnnounceRequest
    wants_fence: bool
    worker_id: str
    model: str
    kind: KindKey
    n_pages: int
    decode_rows: int
    host: str
    rank: str

    @property
    def place(self) -> tuple[str, KindKey, str]:
        """What decides in which tables the worker is."""
        return self.model, self.kind, self.host


class Roster:
    """The workers that may get new work, by model. `n_looks` counts the views that were read."""

    def __init__(
        self, config: AdmissionConfig, members: Membership, tally: Tally, salt: str = ""
    ) -> None:
        """Routers with different salts prefer different ones of equal workers."""
        self.n_looks = 0
        self._salt = salt
        self.config = config
        self.holds_slo: Callable[[], bool] = lambda: False  # whether a controller tells one
        self._held_slo = False  # when the views were made
        self._members = members
        self._tally = tally
        self._views: dict[int, WorkerView] = {}
        self._facts: dict[int, _Facts] = {}  # of the workers that have a view
        self._others: dict[int, _Others] = {}  # of the same
        self._kinds: dict[str, dict[KindKey, WorkerKind]] = {}
        self._news: dict[str, _News] = {}  # by model
        self._token_s: dict[str, float] = {}  # of a prompt, by fingerprint, as reported last

    def all(self, model: str) -> list[WorkerView]:
        """Every view of a model, for reports: placements read a `shortlist`."""
        self.refresh()
        return [view for epoch, view in self._views.items() if self._facts[epoch].model == model]

    def view(self, epoch: int) -> WorkerView | None:
        """The worker's view; None if it may not get new work."""
        self.refresh()
        return self._views.get(epoch)

    def shortlist(self, need: Need, model: str, host: str = "") -> list[WorkerView]:
        """Views from which `place` and `place_decode` choose the same as from all; `host` is the
        source of `place_decode`'s pages."""
        if not self.has_room(need, model):
            return []
        kinds = self._kinds[model].values()
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

    def has_room(self, need: Need, model: str) -> bool:
        """Whether any worker may be chosen to decode."""
        self.refresh()
        n_tokens = need.n_tokens + need.growth_tokens
        return any(kind.has_room(n_tokens) for kind in self._kinds.get(model, {}).values())

    def has_news(self, model: str) -> bool:
        """Whether `has_news_for` may return True."""
        self.refresh()
        return model in self._news

    def has_news_for(self, need: Need, model: str) -> bool:
        """Whether a request that found no place at the last call may find one now: a worker has got
        room for it, or one has left, so that the policy may choose others."""
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
        """Forget the news, because no request waits."""
        self._news.clear()

    def refresh(self) -> None:
        """Remake the views that may have changed."""
        if self._held_slo is not self.holds_slo():
            self._held_slo = not self._held_slo
            self._tally.changed.update(self._views)  # guard: views of the bound
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
        facts = self._facts_of(member, known)
        view = self._view(epoch, member, facts)
        self.n_looks += 1
        if facts is not known:
            if old is not None and known is not None and known.place != facts.place:
                self._drop(old)
                old = None
            self._facts[epoch] = facts
        if view == old:
            return
        self._views[epoch] = view
        kinds = self._kinds.setdefault(facts.model, {})
        kind = kinds.get(facts.kind)
        if kind is None:
            kind = kinds[facts.kind] = WorkerKind(self._views, decode_cost)
        kind.put(view)
        if view.prefills and (old is None or _has_grown_for_prompts(old, view)):
            self._news_of(facts.model).prefill[epoch] = view
        if view.decodes and (old is None or _has_grown_for_rows(old, view)):
            self._news_of(facts.model).decode[epoch] = view

    def _drop(self, view: WorkerView) -> None:
        facts = self._facts.pop(view.epoch)
        self._others.pop(view.epoch, None)
        del self._views[view.epoch]
        kinds = self._kinds[facts.model]
        kind = kinds[facts.kind]
        kind.remove(view)
        if not kind.n_workers:
            del kinds[facts.kind]
        if not kinds:
            del self._kinds[facts.model]
        if not any(other.fingerprint == facts.kind.fingerprint for other in kinds):
            self._token_s.pop(facts.kind.fingerprint, None)
        self._news_of(facts.model).has_left = True

    def _news_of(self, model: str) -> _News:
        return self._news.setdefault(model, _News())

    def _facts_of(self, member: Member, known: _Facts | None) -> _Facts:
        """The member's facts; `known` itself if it is still valid."""
        told, wants_fence = member.announce, bool(member.load.fence_wanted)
        if known is not None and known.announce is told and known.wants_fence == wants_fence:
            return known
        kind = KindKey(
            fingerprint=told.fingerprint,
            layout=told.layout,
            makes_dtypes=tuple(told.makes_dtypes),
            prefills=member.prefills,
            decodes=member.decodes and not wants_fence,  # then it accepts no reservations
            page_tokens=told.page_tokens,
        )
        name, salt = member.worker_id, self._salt
        rank = blake2b(f"{salt} {name}".encode(), digest_size=8).hexdigest() if salt else name
        return _Facts(
            told, wants_fence, name, told.model, kind,
            told.n_pages, told.decode_rows, told.host_identity, rank,
        )  # fmt: skip

    def _view(self, epoch: int, member: Member, facts: _Facts) -> WorkerView:
        load, kind = member.load, facts.kind
        share = self._tally.of(epoch)
        others = self._others.get(epoch)
        if others is None or others.load is not load:
            others = self._others[epoch] = _Others.of(load, share)
            self._note_pace(kind, load)
        rows = share.rows + others.rows
        is_enough = self.config.is_enough(share.backlog_prompts, share.backlog_tokens)
        return WorkerView(
            epoch=epoch,
            worker_id=facts.worker_id,
            fingerprint=kind.fingerprint,
            prefills=kind.prefills,
            decodes=kind.decodes,
            n_pages=facts.n_pages,
            page_tokens=kind.page_tokens,
            layout=kind.layout,
            makes_dtypes=kind.makes_dtypes,
            occupied_pages=share.pages + others.pages,
            rows=rows,
            max_rows=facts.decode_rows + self.config.extra_rows,
            backlog_tokens=share.backlog_tokens + others.backlog_tokens,
            max_backlog_tokens=self.config.max_prefill_backlog_tokens,
            has_enough=self._held_slo and is_enough,  # guard: no SLO
            last_given=member.last_given,
            host=facts.host,
            rank=facts.rank,
            beside_tokens=self._beside_tokens(kind, rows),
        )

    def _note_pace(self, kind: KindKey, load: worker_pb2.LoadReport) -> None:
        if self.config.beside_rows_s is not None and load.done.prefill_tokens and not kind.decodes:
            token_s = load.done.prefill_s / load.done.prefill_tokens
            self._token_s[kind.fingerprint] = max(token_s, _LEAST_TOKEN_S)

    def _beside_tokens(self, kind: KindKey, rows: int) -> int | None:
        """How many tokens of prompts cost `rows` rows together as much time as the config allows;
        none until some worker with the same fingerprint has reported how long they take."""
        most_s = self.config.beside_rows_s
        if most_s is None or not (kind.prefills and kind.decodes):
            return None
        token_s = self._token_s.get(kind.fingerprint)
        return int(most_s / (token_s * max(1, rows))) if token_s else 0


class _Others(NamedTuple):
    """Other routers' load on a worker: what it has beyond our share when its report had come. What
    was under way to the worker just then is in our share and not in the report, so for one report
    the others' share is taken as too small."""

    load: worker_pb2.LoadReport
    rows: int
    pages: int
    backlog_tokens: int

    @classmethod
    def of(cls, load: worker_pb2.LoadReport, share: Share) -> _Others:
        pages = load.pages
        # Rows that wait for pages hold none: smaller ones may go before them (`expected_pages`).
        taken = pages.used + pages.pinned + pages.quarantined + load.reserved_growth_pages
        return cls(
            load,
            rows=max(0, load.rows + load.expected_rows - share.rows),
            pages=max(0, taken - share.pages),
            backlog_tokens=max(0, load.prefill_queue_tokens - share.backlog_tokens),
        )


@dataclass(slots=True)
class _News:
    """The changes since the last call of `has_news_for`. They are kept by epoch, because that call
    may not come for long, for a model whose requests do not wait."""

    has_left: bool = False  # a worker has left
    # Workers that have got room for a prompt.
    prefill: dict[int, WorkerView] = field(default_factory=dict)
    # Workers that have got room for a row.
    decode: dict[int, WorkerView] = field(default_factory=dict)


def _has_grown_for_prompts(old: WorkerView, new: WorkerView) -> bool:
    is_room = new.backlog_rank < old.backlog_rank or new.n_pages > old.n_pages
    return is_room or (new.beside_tokens or 0) > (old.beside_tokens or 0)


def _has_grown_for_rows(old: WorkerView, new: WorkerView) -> bool:
    is_room = new.free_pages > old.free_pages or new.rows < old.rows
    return is_room or new.max_rows > old.max_rows
