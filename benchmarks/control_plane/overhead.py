"""A router's cost in one run: CPU time, and time to first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.load.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """One run. `outside_*` is the time to first token less the worker's share; `outside_door_*` is
    the same by the router's own clock: from the request's arrival to the token."""

    at_once: int
    requests: int
    failed: int
    tokens: int
    tokens_per_message: float
    wall_s: float
    router_cpu_s: float
    tokens_per_cpu_s: float
    outside_p50_ms: float | None
    outside_p99_ms: float | None
    outside_door_p50_ms: float | None


def overhead(records: Sequence[Record], cpu_s: float, at_once: int) -> Overhead:
    """The figures of one run."""
    tokens = sum(len(record.token_times_s) for record in records)
    # The tokens of one message share one time.
    messages = sum(len(set(record.token_times_s)) for record in records)
    told = [r for r in records if r.ledger and r.ttft_s is not None]
    worker_s = [r.ledger["prefill_wait_s"] + r.ledger["prefill_s"] for r in told]
    outside_ms = [
        (r.token_times_s[0] - r.late_s - at_worker_s) * 1e3
        for r, at_worker_s in zip(told, worker_s, strict=True)
    ]
    door_ms = [
        (r.ledger["ttft_s"] - at_worker_s) * 1e3
        for r, at_worker_s in zip(told, worker_s, strict=True)
    ]
    began_s = min(record.arrival_s for record in records)
    return Overhead(
        at_once=at_once,
        requests=len(records),
        failed=sum(not record.is_complete for record in records),
        tokens=tokens,
        tokens_per_message=tokens / max(1, messages),
        wall_s=max(record.end_s for record in records) - began_s,
        router_cpu_s=cpu_s,
        tokens_per_cpu_s=tokens / cpu_s if cpu_s else 0.0,
        outside_p50_ms=_percentile(outside_ms, 50),
        outside_p99_ms=_percentile(outside_ms, 99),
        outside_door_p50_ms=_percentile(door_ms, 50),
    )


def _percentile(values: Sequence[float], p: float) -> float | None:
    return float(np.percentile(values, p)) if values else None
