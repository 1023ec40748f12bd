"""Points that are measured for seconds on end, against products that were, too: a card that is warm
and at its power's limit has a lower clock than in the short measurements of
`benchmarks.engine.steps`. Beside each time are the clock and the power during the second half.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.engine.points import Point, Rates, Rows, Shape, Stored, decode_s, prefill_s
from benchmarks.kernels.card import PRODUCT_OPERATIONS, bf16_products, fp8_products
from benchmarks.kernels.meter import card_samples, late_half
from twolane.engine.step import Engine


@dataclass(frozen=True, slots=True)
class Sustained:
    """Medians over the second half of a run; the clock and the power are None if the card does not
    tell them."""

    time_s: float
    clock_mhz: float | None
    watts: float | None

    @property
    def operations(self) -> float:
        """Per second, of a product of `PRODUCT_OPERATIONS`."""
        return PRODUCT_OPERATIONS / self.time_s

    def to_json(self) -> dict[str, float | None]:
        watts = None if self.watts is None else round(self.watts, 1)
        return {"clock_mhz": self.clock_mhz, "watts": watts}


def sustain(call: Callable[[], float], seconds: float) -> Sustained:
    """Call for that long, at least twice. `call` returns the seconds of what it measured."""
    found: list[tuple[float, float]] = []
    with card_samples() as samples:
        begun_s = time.perf_counter()
        while len(found) < 2 or time.perf_counter() - begun_s < seconds:
            took_s = call()
            found.append((time.perf_counter() - begun_s, took_s))
    half_s = found[-1][0] / 2
    return Sustained(median(took for at, took in found if at > half_s), *late_half(samples))


def measure_sustained(
    engine: Engine,
    points: Sequence[Point],
    rates: Rates,
    shape: Shape,
    stored: Stored,
    seconds: float,
) -> dict[str, Any]:
    """Products before and after the points, each for `seconds`. Shares are of rooflines with the
    mean rate of these products, and with the read rate of `rates`."""
    products = {"bf16": bf16_products()}
    if stored.weights == "fp8":
        products["fp8"] = fp8_products()
    before = {name: sustain(call, seconds) for name, call in products.items()}
    measured: list[tuple[Point, Sustained]] = []
    for point in points:
        its = sustain(partial(_once_s, engine, Rows(point, engine.spec)), seconds)
        measured.append((point, its))
        print(f"{point.name:18s} {its.time_s * 1e3:9.3f} ms  {its.to_json()}", flush=True)
    after = {name: sustain(call, seconds) for name, call in products.items()}
    kept = {name: (before[name].operations + after[name].operations) / 2 for name in products}
    sustained = Rates(rates.read, kept["bf16"], kept.get("fp8", rates.fp8_matmul))
    return {
        "seconds": seconds,
        "products_before": _of_products(before),
        "products_after": _of_products(after),
        "points": [
            {
                "name": point.name, "time_ms": round(its.time_s * 1e3, 3), **its.to_json(),
                "share_of_roofline": round(
                    point.roofline_s(sustained, shape, stored) / its.time_s, 3
                ),
            }
            for point, its in measured
        ],
    }  # fmt: skip


def _of_products(found: Mapping[str, Sustained]) -> dict[str, dict[str, float | None]]:
    return {
        name: {"tflop_per_s": round(its.operations / 1e12, 1), **its.to_json()}
        for name, its in found.items()
    }


def _once_s(engine: Engine, rows: Rows) -> float:
    """Seconds of a prefill, or of a decode step; contexts are then as at first."""
    if not rows.point.is_decode:
        return prefill_s(engine, rows)
    time_s = median(decode_s(engine, rows))
    rows.forget()
    return time_s
