"""Which warm-up passes cover every kernel variant and graph that later steps may need.

A kernel's variants depend on classes of row counts, not on each count: products of few rows are
built for `PADDED_ROWS` of `twolane.engine.kernels.products.few_rows_plan`, decode plans for powers
of two, decode graphs for buckets. So one pass per class covers all of its kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from twolane.engine.cuda.plans import BUCKETS, MAX_ROWS, PROMPT_BUCKETS, prompt_bucket_for
from twolane.engine.cuda.products import MANY_ROWS, STREAMED_ROWS
from twolane.engine.kernels.products.few_rows_plan import PADDED_ROWS

# For passes without a graph, by tokens or sampled rows: the largest of every class of products.
CLASSES: tuple[int, ...] = (1, 2, *PADDED_ROWS, 2 * STREAMED_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShapes:
    """The steps that an engine is warmed up for. Others are slow when they are first used. Zeros:
    no warm-up."""

    rows: int  # most decode rows in a step
    tokens: int  # most positions in a step

    @property
    def any(self) -> bool:
        return bool(self.rows or self.tokens)

    @property
    def buckets(self) -> list[int]:
        """Buckets of decode graphs, largest first: later ones fit in the memory of the first. One
        more than the rows need, for prompts with one token left."""
        enough = next((size for size in BUCKETS if size > self.rows), MAX_ROWS)
        return [size for size in reversed(BUCKETS) if size <= enough] if self.rows else []

    def prompt_buckets(self, *, exact: bool) -> list[int]:
        """Buckets of graphs of prompts, largest first."""
        most = PROMPT_BUCKETS[-1]
        lengths = range(2, min(self.tokens, most) + 1)
        found = {prompt_bucket_for(n, most, exact=exact) for n in lengths}
        return sorted((size for size in found if size), reverse=True)


@dataclass(frozen=True, slots=True)
class PassKind:
    """A pass with chunks: decode rows, the new tokens of its only chunk, and sampled rows."""

    decode: int
    chunk: int
    sampled: int

    @property
    def tokens(self) -> int:
        return self.decode + self.chunk


def mixed_kinds(expected: StepShapes, *, many_rows_from: int | None) -> list[PassKind]:
    """Longest first, since those need the most memory. `many_rows_from`: tokens from which the
    gated product uses the many-rows kernel, if ever."""
    if not expected.tokens:
        return []
    longs = {*CLASSES, MANY_ROWS, many_rows_from or MANY_ROWS, expected.tokens}
    longs |= {MANY_ROWS << i for i in range(1, 5)}
    kinds = [PassKind(0, n, 1) for n in longs if 2 <= n <= expected.tokens]
    # A short chunk beside decode rows, all sampled: covers the products with the head.
    kinds += [PassKind(n - 1, 2, n) for n in CLASSES if n + 1 <= expected.tokens]
    # Decode rows up to each power of two, which plans are built for.
    powers = [1 << i for i in range(4, 11) if 1 << i < 2 * expected.rows]
    kinds += [PassKind(n, 2, 0) for n in powers if n + 2 <= expected.tokens]
    return sorted(set(kinds), key=lambda kind: -kind.tokens)
