"""What the workers of a model have said about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twolane.v1 import cluster_pb2, worker_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The bounds of one model: what fits somewhere (pages) and everywhere (context)."""

    name: str
    fingerprint: str  # of the worker heard last; during an upgrade there may be two
    vocab_size: int
    max_context_tokens: int
    page_tokens: int
    max_prefill_pages: int  # of the largest prefill worker
    max_decode_pages: int

    def pages_for(self, n_tokens: int) -> int:
        return pages_for(n_tokens, self.page_tokens)


def pages_for(n_tokens: int, page_tokens: int) -> int:
    """Pages that hold `n_tokens`."""
    return -(-n_tokens // page_tokens)


def model_facts(name: str, announces: Iterable[cluster_pb2.AnnounceRequest]) -> ModelFacts | None:
    """Facts of the model `name`, or None if no worker of either role is among `announces`."""
    workers = [announce for announce in announces if announce.model == name]
    prefill = [a.n_pages for a in workers if worker_pb2.ROLE_PREFILL in a.roles]
    decode = [a.n_pages for a in workers if worker_pb2.ROLE_DECODE in a.roles]
    if not prefill or not decode:
        return None
    return ModelFacts(
        name=name,
        fingerprint=workers[-1].fingerprint,
        vocab_size=min(a.vocab_size for a in workers),
        max_context_tokens=min(a.max_context_tokens for a in workers),
        page_tokens=min(a.page_tokens for a in workers),
        max_prefill_pages=max(prefill),
        max_decode_pages=max(decode),
    )
