"""The figures of one point: one target under one load, over one or more seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.load.record import Record, Slo

GOODPUT_SHARE = 0.9  # a rate counts as served when this share of its requests meets the SLO


@dataclass(frozen=True, slots=True)
class Run:
    """The records of one seed, and the planned arrival of the last of them."""

    seed: int
    span_s: float
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class Point:
    """Runs of one target under one load: the input of `measure` and of the plots."""

    runs: Sequence[Run]

    @property
    def records(self) -> list[Record]:
        return [record for run in self.runs for record in run.records]


def measure(point: Point, slo: Slo) -> dict[str, float | None]:
    """Figures by name, units in the names; None if there is nothing to measure.

    Percentiles of TTFT, of time per output token and of the ledger are over requests; those of
    gaps are over all gaps of all requests. `held_share` counts all requests sent, failed ones
    too; `goodput_per_s` is that share of the offered rate.
    """
    records = point.records
    span_s = sum(run.span_s for run in point.runs)
    busy_s = sum(max(record.end_s for record in run.records) for run in point.runs)
    held = sum(slo.is_held(record) for record in records) / len(records)
    offered = len(records) / span_s if span_s else None
    return {
        "requests": len(records),
        "failed": sum(not record.is_complete for record in records),
        "offered_per_s": offered,
        "held_share": held,
        "goodput_per_s": None if offered is None else held * offered,
        "output_tokens_per_s": sum(len(record.token_times_s) for record in records) / busy_s,
        **describe(records),
    }


def describe(records: Sequence[Record]) -> dict[str, float | None]:
    """The figures of `measure` that need neither an SLO nor a rate.

    `request_gap_p99_p90_ms` is the bound that the 99th percentile of 90 % of the requests is
    within; with it, and `ttft_p90_ms`, an SLO could be promised.
    """
    gaps_ms = all_gaps_s(records) * 1e3
    own_p99_ms = [record.gap_p99_s * 1e3 for record in records if record.is_complete]
    figures: dict[str, float | None] = {
        **_percentiles("ttft_ms", [r.ttft_s * 1e3 for r in records if r.ttft_s is not None]),
        **_percentiles("tpot_ms", [r.tpot_s * 1e3 for r in records if r.tpot_s is not None]),
        **_percentiles("gap_ms", gaps_ms),
        **_percentiles("first_gap_ms", [r.gaps_s[0] * 1e3 for r in records if len(r.gaps_s)]),
        "gap_max_ms": float(gaps_ms.max()) if len(gaps_ms) else None,
        "request_gap_p99_p90_ms": float(np.percentile(own_p99_ms, 90)) if own_p99_ms else None,
    }
    n_messages = sum(len(set(record.token_times_s)) for record in records)
    n_tokens = sum(len(record.token_times_s) for record in records)
    figures["tokens_per_message"] = n_tokens / n_messages if n_messages else None
    told = [record.ledger for record in records if record.ledger]
    for name in ("queued", "prefill_wait", "prefill", "transfer", "decode_wait"):
        spent = [ledger[f"{name}_s"] * 1e3 for ledger in told]
        for p in (50, 99):
            figures[f"{name}_p{p}_ms"] = float(np.percentile(spent, p)) if spent else None
    figures["cached_prompt_tokens"] = sum(ledger["cached_tokens"] for ledger in told)
    figures["moved_mib"] = sum(ledger["transfer_bytes"] for ledger in told) / 2**20
    figures["resumed_requests"] = sum(ledger["attempts"] > 1 for ledger in told)
    late_ms = [record.late_s * 1e3 for record in records]
    figures["client_late_p99_ms"] = float(np.percentile(late_ms, 99)) if late_ms else None
    return figures


def held_by_seed(point: Point, slo: Slo) -> dict[str, float]:
    """The share that meets the SLO, for each run: how much it depends on the seed."""
    return {
        str(run.seed): sum(slo.is_held(record) for record in run.records) / len(run.records)
        for run in point.runs
    }


def failures(point: Point) -> dict[str, int]:
    """How many requests failed, by reason."""
    return dict(Counter(record.failure for record in point.records if record.failure))


def served_rate(held_at: Mapping[float, float]) -> float | None:
    """The highest rate up to which `GOODPUT_SHARE` of requests meet the SLO at every rate."""
    best: float | None = None
    for rate_per_s, share in sorted(held_at.items()):
        if share < GOODPUT_SHARE:
            break
        best = rate_per_s
    return best


def all_gaps_s(records: Sequence[Record]) -> npt.NDArray[np.float64]:
    """Every gap of every request."""
    return np.concatenate([record.gaps_s for record in records] or [np.empty(0)])


def _percentiles(
    name: str, values: Sequence[float] | npt.NDArray[np.float64]
) -> dict[str, float | None]:
    stem, unit = name.rsplit("_", 1)
    if not len(values):
        return {f"{stem}_p{p}_{unit}": None for p in (50, 90, 99)}
    return {f"{stem}_p{p}_{unit}": float(np.percentile(values, p)) for p in (50, 90, 99)}
