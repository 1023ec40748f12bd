"""Which part of a model each rank holds. Pure functions; rank 0 of 1 holds all of it.

queries, gate, up     rows of the matrix: a rank's heads, a rank's part of the width
keys, values          rows: a rank's heads; with fewer heads than ranks, several ranks hold one
out, down             columns: for a rank's heads and width; the results are all-reduced
head                  rows: a part of the vocabulary, padded if it does not divide
embedding, norms      whole: a lookup reads next to nothing
biases of out, down   rank 0 only: they are added once
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from twolane.engine.errors import EngineConfigError
from twolane.engine.model_files.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Cut:
    """Indices [start, start + size) of `whole` along dimension `dim`."""

    dim: int
    start: int
    size: int
    whole: int

    def whole_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the tensor that a part of that shape is cut from."""
        return (*shape[: self.dim], self.whole, *shape[self.dim + 1 :])

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part, as a view."""
        return tensor.narrow(self.dim, self.start, self.size)


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `ranks`."""

    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.ranks

    def check(self, arch: Architecture) -> None:
        """Raises EngineConfigError for a model that does not divide evenly."""
        n, kv_heads = self.ranks, arch.kv_heads
        for name, size in (("attention heads", arch.heads), ("of width", arch.intermediate_size)):
            if size % n:
                raise EngineConfigError(f"{size} {name} do not divide over {n} ranks")
        if kv_heads % n and n % kv_heads:
            raise EngineConfigError(f"{kv_heads} key-value heads do not divide over {n} ranks")

    def local(self, arch: Architecture) -> Architecture:
        """The model as this rank's layers see it: fewer heads, a smaller intermediate size."""
        self.check(arch)
        return replace(
            arch,
            heads=arch.heads // self.ranks,
            kv_heads=max(1, arch.kv_heads // self.ranks),
            intermediate_size=arch.intermediate_size // self.ranks,
        )

    def part(self, whole: int, *, dim: int = 0) -> Cut:
        """An equal part; `whole` must be divisible."""
        size = whole // self.ranks
        return Cut(dim, self.rank * size, size, whole)

    def kv_part(self, arch: Architecture) -> Cut:
        """The rank's rows of keys, or of values."""
        held = max(1, arch.kv_heads // self.ranks)
        first = self.rank * arch.kv_heads // self.ranks
        dim = arch.head_dim
        return Cut(0, first * dim, held * dim, arch.kv_heads * dim)

    def vocab_rows(self, vocab_size: int) -> int:
        """Rows of every rank's part of the head, padding included."""
        return -(-vocab_size // self.ranks)

    def vocab_part(self, vocab_size: int) -> Cut:
        """The tokens whose logits this rank computes: the last ranks may have fewer, or none."""
        rows = self.vocab_rows(vocab_size)
        start = min(self.rank * rows, vocab_size)
        return Cut(0, start, min(rows, vocab_size - start), vocab_size)


WHOLE = Shard()
