"""All-reduce over ranks on GPUs: in one shot for few rows, by the library otherwise."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from twolane.engine.kernels.pdl import APART
from twolane.engine.kernels.rows.all_reduce import PeerBuffers, all_reduce, all_reduce_norm
from twolane.engine.kernels.rows.norm import rms_norm
from twolane.engine.model_files.fp8 import Matrix
from twolane.engine.parallel.collective import Collective

# Up to this many bytes one shot is faster than NCCL, by number of ranks: each rank reads from every
# other, so the more ranks, the sooner a ring is faster (from benchmarks/kernels/all_reduce.py).
ONE_SHOT_BYTES: Mapping[int, int] = {2: 2 << 20, 3: 1 << 20, 4: 1 << 20}


class AllReduce:
    """All-reduces for the layers of one rank's model. All ranks call them in the same order.

    `peers` None: always by the library. With `exact`, the library must add in rank order (see
    `LibraryCollective`), as the one-shot kernel does.
    """

    def __init__(self, ranks: Collective, peers: PeerBuffers | None) -> None:
        self.waits = ranks.waits  # on the host, during a step
        self._ranks = ranks
        self._peers = peers
        self._one_shot_bytes = ONE_SHOT_BYTES.get(ranks.ranks, 512 << 10)

    def add_norm(
        self,
        part: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        *,
        out: Matrix,
        epsilon: float,
        pdl: int,
    ) -> None:
        """residual += the sum of `part` over all ranks; out = the norm of it."""
        peers = self._peers if self._in_one_shot(part) else None
        if peers is not None and isinstance(out, torch.Tensor):
            all_reduce_norm(
                part, weight, peers, residual=residual, out=out, epsilon=epsilon, pdl=pdl
            )
            return
        if peers is not None:
            all_reduce(part, peers, out=part, pdl=pdl)
            whole = part
        else:
            whole = self._ranks.all_reduce(part)
            pdl = APART  # the library uses a stream of its own, which this one waits for
        rms_norm(whole, weight, out=out, epsilon=epsilon, residual=residual, pdl=pdl)

    def logits(self, part: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """`[n, vocab]` from every rank's columns; rows may be strided."""
        return self._ranks.all_gather(part)[:, :vocab_size]

    def agreed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Rank 0's tokens `[n]`, for all ranks: the library may sum in any order, so ranks could
        otherwise sample from logits that differ in their last bits."""
        return self._ranks.all_gather(tokens)[: len(tokens)]

    def _in_one_shot(self, part: torch.Tensor) -> bool:
        if self._peers is None or len(part) > self._peers.rows:
            return False
        return part.numel() * part.itemsize <= self._one_shot_bytes
