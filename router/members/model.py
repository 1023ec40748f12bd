"""The bounds of a model, from its workers' announces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twolane.layout import can_feed
from twolane.v1 import cluster_pb2, worker_pb2


@dataclass(frozen=True, slots=True)
class Pool:
    """The pages of one worker."""

    n_pages: int
    page_tokens: int

    @property
    def n_tokens(self) -> int:
        return self.n_pages * self.page_tokens


@dataclass(frozen=True, slots=True)
class Room:
    """The largest worker of each role. Pages move only between workers with the same fingerprint,
    to layouts into which they can be converted, so a request must fit one such pair."""

    prefill: Pool
    decode: Pool

    @property
    def n_tokens(self) -> int:
        """The maximum length of prompt and answer together. The decode worker holds all of these
        tokens; if the answer is resumed just before its end, a prefill worker recomputes all but
        the last."""
        return min(self.prefill.n_tokens + 1, self.decode.n_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The bounds of one model: the pages of the largest pair of workers, and the context that all
    workers have."""

    name: str
    fingerprint: str  # of the last worker; during an upgrade there may be two
    vocab_size: int
    max_context_tokens: int
    room: Room  # of the fingerprint with the most


def pages_for(n_tokens: int, page_tokens: int) -> int:
    """The number of pages that hold `n_tokens`."""
    return -(-n_tokens // page_tokens)


def model_facts(name: str, announces: Iterable[cluster_pb2.AnnounceRequest]) -> ModelFacts | None:
    """The facts of model `name`; None if none of its fingerprints has workers of both roles among
    `announces`."""
    workers = [announce for announce in announces if announce.model == name]
    by_fingerprint: dict[str, list[cluster_pb2.AnnounceRequest]] = {}
    for worker in workers:
        by_fingerprint.setdefault(worker.fingerprint, []).append(worker)
    rooms = [room for group in by_fingerprint.values() if (room := _room(group)) is not None]
    if not rooms:
        return None
    return ModelFacts(
        name=name,
        fingerprint=workers[-1].fingerprint,
        vocab_size=min(a.vocab_size for a in workers),
        max_context_tokens=min(a.max_context_tokens for a in workers),
        room=max(rooms, key=lambda room: room.n_tokens),
    )


def _room(group: Sequence[cluster_pb2.AnnounceRequest]) -> Room | None:
    """The largest pair, by the rules of `twolane.router.dispatch.policy`: if every prefill worker
    also decodes, one of them takes both sides. Only the largest worker of each kind is tried,
    because workers with equal layouts can be paired alike."""
    prefill = [a for a in group if worker_pb2.ROLE_PREFILL in a.roles]
    decode = [a for a in group if worker_pb2.ROLE_DECODE in a.roles]
    if prefill and all(worker_pb2.ROLE_DECODE in a.roles for a in prefill):
        decode = prefill
    givers, takers = _largest_by_kind(prefill), _largest_by_kind(decode)
    pairs = [(p, d) for p in givers.values() for d in takers.values() if feeds(p, d)]
    if not pairs:
        return None
    return Room(_largest(p for p, _ in pairs), _largest(d for _, d in pairs))


def _largest_by_kind(
    workers: Iterable[cluster_pb2.AnnounceRequest],
) -> dict[tuple[str, ...], cluster_pb2.AnnounceRequest]:
    """The worker with the largest pool for each layout and set of dtypes that it can convert to."""
    largest: dict[tuple[str, ...], cluster_pb2.AnnounceRequest] = {}
    for worker in workers:
        kind = (worker.layout, *worker.makes_dtypes)
        rival = largest.get(kind)
        if rival is None or _n_tokens(rival) < _n_tokens(worker):
            largest[kind] = worker
    return largest


def _n_tokens(worker: cluster_pb2.AnnounceRequest) -> int:
    return Pool(worker.n_pages, worker.page_tokens).n_tokens


def feeds(prefill: cluster_pb2.AnnounceRequest, decode: cluster_pb2.AnnounceRequest) -> bool:
    """Whether pages can go from `prefill` to `decode`, which have the same fingerprint."""
    return can_feed(prefill.layout, decode.layout, tuple(prefill.makes_dtypes))


def can_pair(prefill: cluster_pb2.AnnounceRequest, decode: cluster_pb2.AnnounceRequest) -> bool:
    """Whether pages can go from `prefill` to `decode`, and mean the same there."""
    is_same = (prefill.model, prefill.fingerprint) == (decode.model, decode.fingerprint)
    return is_same and feeds(prefill, decode)


def _largest(group: Iterable[cluster_pb2.AnnounceRequest]) -> Pool:
    pools = (Pool(a.n_pages, a.page_tokens) for a in group)
    return max(pools, key=lambda pool: pool.n_tokens)
