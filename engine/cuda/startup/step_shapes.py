"""Which passes an engine must have made for no later one to be of a new kind.

A kernel's variants follow from how many rows it has by classes, not by each number: products of
few rows are built for 8, 16, ... 128 (`twolane.engine.kernels.products.few_rows_plan.pad_rows`),
decode plans for powers of two, decode graphs for buckets. So a pass of each class stands for all of
its kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from twolane.engine.cuda.plans import BUCKETS, MAX_ROWS
from twolane.engine.cuda.products import STREAMED_ROWS, TALL_ROWS

# Of a pass that is no graph, by tokens or by rows sampled: the largest of every class of products.
CLASSES: tuple[int, ...] = (1, 2, 8, 16, 32, 64, STREAMED_ROWS, 2 * STREAMED_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShapes:
    """What steps are expected to be: an engine is made ready for them. Others take their time when
    they are first met. Zeros: it is not made ready at all."""

    rows: int  # that decode at once, at most
    tokens: int  # of a step, at most

    @property
    def any(self) -> bool:
        return bool(self.rows or self.tokens)

    @property
    def buckets(self) -> list[int]:
        """Of decode graphs, largest first: later ones find room in the memory of the first. One
        more than rows need, for prompts that have one token left."""
        enough = next((size for size in BUCKETS if size > self.rows), MAX_ROWS)
        return [size for size in reversed(BUCKETS) if size <= enough] if self.rows else []


@dataclass(frozen=True, slots=True)
class PassKind:
    """A pass with chunks: decode rows, the new tokens of its only chunk, and rows sampled."""

    decode: int
    chunk: int
    sampled: int

    @property
    def tokens(self) -> int:
        return self.decode + self.chunk


def mixed_kinds(usual: StepShapes, *, tall_rows: int | None) -> list[PassKind]:
    """Longest first, as those take the most memory. `tall_rows`: tokens from which on the gated
    product of many rows has a kernel of its own, if ever."""
    if not usual.tokens:
        return []
    longs = {*CLASSES, TALL_ROWS, tall_rows or TALL_ROWS, usual.tokens}
    longs |= {TALL_ROWS << i for i in range(1, 5)}
    kinds = [PassKind(0, n, 1) for n in longs if 2 <= n <= usual.tokens]
    # A short chunk beside decode rows, all sampled: the products with the head, by their rows.
    kinds += [PassKind(n - 1, 2, n) for n in CLASSES if n + 1 <= usual.tokens]
    # Decode rows up to each power of two, as plans are built for.
    powers = [1 << i for i in range(4, 11) if 1 << i < 2 * usual.rows]
    kinds += [PassKind(n, 2, 0) for n in powers if n + 2 <= usual.tokens]
    return sorted(set(kinds), key=lambda kind: -kind.tokens)
