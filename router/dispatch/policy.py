"""Picks the prefill and the decode worker, as a pure function of a snapshot.

The prefill worker is the one that would finish the prompt first: the one with the least backlog
plus tokens to compute, where a prefix that it had recently counts as computed. Of equal workers,
the one that was given work longest ago is picked. The decode worker is the one with the most free
pages, then the fewest rows, among those with room for the row and its growth. A decode worker on
the prefill worker's host is preferred if that costs nothing: if the share of its pages in use, less
this row's own, is at most 9/8 of the other's. Both workers have the same model fingerprint, and
pages can be converted from the first one's layout to the second one's. If every prefill worker of a
fingerprint also decodes, the cluster is colocated, and one worker takes both roles, so that no page
moves.

A worker in `Need.avoid` has refused or failed this request before. It is picked only if there is no
other worker of its role at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twolane.router.members.model import pages_for
from twolane.router.members.worker_view import Need, PageOrigin, WorkerView

_NEAR_SHARE = 1 / 8


@dataclass(frozen=True, slots=True)
class Placement:
    prefill: WorkerView
    decode: WorkerView


def place(need: Need, workers: Sequence[WorkerView]) -> Placement | None:
    """The best pair; None if no pair has room now."""
    best: tuple[tuple[int, int, int, str], Placement] | None = None
    for fingerprint in sorted({worker.fingerprint for worker in workers}):
        group = [worker for worker in workers if worker.fingerprint == fingerprint]
        placement = _place_within(need, group)
        if placement is not None:
            cost = _prefill_cost(need, placement.prefill)
            if best is None or cost < best[0]:
                best = cost, placement
    return best[1] if best else None


def place_pair(
    need: Need, prefill: WorkerView | None, decode: WorkerView | None
) -> Placement | None:
    """These two and no others; None if they cannot take it now."""
    if prefill is None or decode is None or not (prefill.prefills and decode.decodes):
        return None
    fits = prefill is decode or prefill.giver.can_feed(decode)
    has_room = prefill.can_prefill(need) and decode.has_room(need.n_tokens + need.growth_tokens)
    return Placement(prefill, decode) if fits and has_room else None


def place_decode(
    need: Need, workers: Iterable[WorkerView], giver: PageOrigin, host: str = ""
) -> WorkerView | None:
    """A decode worker for pages that a prefill worker on `host` already holds; None if none has
    room."""
    group = [w for w in workers if w.decodes and giver.can_feed(w)]
    return _best_decode(need, [w for w in group if w.epoch not in need.avoid], host)


def _place_within(need: Need, group: Sequence[WorkerView]) -> Placement | None:
    prefills = _without_avoided(need, [worker for worker in group if worker.prefills])
    decodes = [worker for worker in group if worker.decodes]
    ready = [worker for worker in prefills if worker.can_prefill(need)]
    if prefills and all(worker.decodes for worker in prefills):
        n_tokens = need.n_tokens + need.growth_tokens
        decodes = _without_avoided(need, decodes)
        ready = [worker for worker in ready if worker in decodes and worker.has_room(n_tokens)]
        both = min(ready, key=lambda worker: _colocated_cost(need, worker), default=None)
        return Placement(both, both) if both is not None else None
    best: dict[tuple[PageOrigin, str], WorkerView | None] = {}  # the same for equal prefill workers
    for prefill in sorted(ready, key=lambda worker: _mixed_cost(need, worker)):
        if prefill.decodes and prefill.beside_tokens is not None:
            if prefill.can_prefill_beside(need):
                return Placement(prefill, prefill)
            continue
        giver = prefill.giver
        key = giver, prefill.host
        if key not in best:
            fed = _without_avoided(need, [d for d in decodes if giver.can_feed(d)])
            best[key] = _best_decode(need, fed, prefill.host)
        decode = best[key]
        if decode is not None:
            return Placement(prefill, decode)
    return None


def _without_avoided(need: Need, workers: list[WorkerView]) -> list[WorkerView]:
    return [worker for worker in workers if worker.epoch not in need.avoid] or workers


def _best_decode(need: Need, workers: Sequence[WorkerView], host: str) -> WorkerView | None:
    """The best decode worker for pages that come from `host`."""
    n_tokens = need.n_tokens + need.growth_tokens
    ready = [worker for worker in workers if worker.has_room(n_tokens)]
    best = min(ready, key=decode_cost, default=None)
    if best is None or not host or best.host == host:
        return best
    near = min((w for w in ready if w.host == host), key=decode_cost, default=None)
    return near if near is not None and _costs_nothing(near, best, n_tokens) else best


def _costs_nothing(near: WorkerView, best: WorkerView, n_tokens: int) -> bool:
    """Whether steps of `near` take about as long as those of `best`: a step's time depends on the
    pages in use, which it reads."""
    own = pages_for(n_tokens, near.page_tokens) / near.n_pages
    return near.used_share <= best.used_share * (1 + _NEAR_SHARE) + own


def _prefill_cost(need: Need, worker: WorkerView) -> tuple[int, int, int, str]:
    to_compute = need.n_tokens - need.cached_tokens.get(worker.epoch, 0)
    # Prefer a pure prefill worker to one that also decodes; of equals, the one that was given work
    # longest ago, so that all caches fill.
    cost = worker.backlog_tokens + to_compute
    return cost, int(worker.decodes), worker.last_given, worker.rank


def _mixed_cost(need: Need, worker: WorkerView) -> tuple[int, int, float, int, str]:
    """Of workers that only prefill, and such with both roles."""
    cost, decodes, last_given, rank = _prefill_cost(need, worker)
    if worker.decodes and worker.beside_tokens is not None:
        return cost, decodes, *decode_cost(worker)
    return cost, decodes, 0.0, last_given, rank


def _colocated_cost(need: Need, worker: WorkerView) -> tuple[int, float, int, str]:
    return _prefill_cost(need, worker)[0], *decode_cost(worker)


def decode_cost(worker: WorkerView) -> tuple[float, int, str]:
    """Least is best; `dispatch/roster.py` keeps workers in this order."""
    return -worker.free_pages / worker.n_pages, worker.rows, worker.rank
