"""Settings of the fast paths; benchmarks change them to compare."""

from __future__ import annotations

from dataclasses import dataclass

from twolane.engine.kernels.pdl import OVERLAP
from twolane.engine.kernels.products.few_rows_plan import RING_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Alternatives that give the same answers.

    `library_products`: use no products of our own. `ring_bytes`: shared memory per SM for weights
    in flight. `overlap`: how the launches of a decode step overlap (`twolane.engine.kernels.pdl`).
    `graphed_tokens`: most tokens of a pass of prompts that runs as a CUDA graph; None: as many as
    pay, where there are graphs.
    """

    library_products: bool = False
    ring_bytes: int = RING_BYTES
    overlap: int = OVERLAP
    graphed_tokens: int | None = None


DEFAULT_TUNING = Tuning()
