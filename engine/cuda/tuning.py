"""What the quick paths are set to; a benchmark sets them otherwise, to compare."""

from __future__ import annotations

from dataclasses import dataclass

from twolane.engine.kernels.pdl import OVERLAP
from twolane.engine.kernels.products.few_rows_plan import RING_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The same answers, by other ways.

    `library_products`: no products of our own. `gemv_rows`: most rows that are multiplied without
    tensor cores. `ring_bytes`: of a multiprocessor, for weights on their way. `overlap`: how the
    launches of a decode step follow each other (`twolane.engine.kernels.pdl`).
    """

    library_products: bool = False
    gemv_rows: int = 2
    ring_bytes: int = RING_BYTES
    overlap: int = OVERLAP


USUAL = Tuning()
