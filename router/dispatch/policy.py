"""Which prefill and which decode worker: a pure function of a snapshot.

The prefill worker is the one that would be through with the prompt first: least backlog plus what
it would have to compute, where a prefix that it had lately counts as computed. Of equals it is the
one that was given work longest ago. The decode worker is
one with room for the row and its growth: most free pages, then fewest rows. One on the prefill
worker's host goes before it if that costs nothing: if of its pages no more are in use than of the
other's, but for this row's own and an eighth. Both have the same
model fingerprint, and the pages of the first can become pages of the second. If every prefill
worker of a fingerprint decodes too, the cluster is colocated, and one worker takes both sides, so
that nothing moves.

A worker in `Need.avoid` refused or failed this request before: it is taken only if no other of its
role is there at all.
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
    """The best pair, or None: nobody has room now."""
    best: tuple[tuple[int, int, int, str], Placement] | None = None
    for fingerprint in sorted({worker.fingerprint for worker in workers}):
        group = [worker for worker in workers if worker.fingerprint == fingerprint]
        placement = _place_within(need, group)
        if placement is not None:
            cost = _prefill_cost(need, placement.prefill)
            if best is None or cost < best[0]:
                best = cost, placement
    return best[1] if best else None


def place_decode(
    need: Need, workers: Iterable[WorkerView], giver: PageOrigin, host: str = ""
) -> WorkerView | None:
    """A decode worker for pages that a prefill worker on that host already holds."""
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
    best: dict[tuple[PageOrigin, str], WorkerView | None] = {}  # of equal prefill workers, the same
    for prefill in sorted(ready, key=lambda worker: _prefill_cost(need, worker)):
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
    """For pages that come from that host."""
    n_tokens = need.n_tokens + need.growth_tokens
    ready = [worker for worker in workers if worker.has_room(n_tokens)]
    best = min(ready, key=_decode_cost, default=None)
    if best is None or not host or best.host == host:
        return best
    near = min((w for w in ready if w.host == host), key=_decode_cost, default=None)
    return near if near is not None and _costs_nothing(near, best, n_tokens) else best


def _costs_nothing(near: WorkerView, best: WorkerView, n_tokens: int) -> bool:
    """Whether steps of `near` take about as long as those of `best`: they read what is in use."""
    own = pages_for(n_tokens, near.page_tokens) / near.n_pages
    return near.used_share <= best.used_share * (1 + _NEAR_SHARE) + own


def _prefill_cost(need: Need, worker: WorkerView) -> tuple[int, int, int, str]:
    to_compute = need.n_tokens - need.cached_tokens.get(worker.epoch, 0)
    # a pure prefill worker before one that decodes too; of equals the one that was given work
    # longest ago, so that all caches fill
    cost = worker.backlog_tokens + to_compute
    return cost, int(worker.decodes), worker.last_given, worker.worker_id


def _colocated_cost(need: Need, worker: WorkerView) -> tuple[int, float, int, str]:
    return _prefill_cost(need, worker)[0], *_decode_cost(worker)


def _decode_cost(worker: WorkerView) -> tuple[float, int, str]:
    return -worker.free_pages / worker.n_pages, worker.rows, worker.worker_id
