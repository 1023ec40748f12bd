"""Which hop made a step late: correlates the stamps of all processes.

    engine       from the previous step      sampled -> sampled
    landing      sampled -> landed           the loop sees the results
    applying     landed -> applied
    shipping     applied -> shipped
    link         shipped -> read             gRPC, and whatever runs on the router's loop
    telling      read -> told
    writing      told -> written             the last of the step's tokens
    receiving    written -> received         by the last client

Writes over HTTP leave no stamps: they count as receiving. What lasts beyond the moment when the
router reads the next message, also another worker's with a first token, is cut there, so some
writing is told too short. A step is late if the gap between its last token and the previous step's,
at the client, exceeds the median gap by `late_ms`. The hop that most exceeds its own median is
counted as the cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gaps.stamps import STAGES, Rows

HOPS = ("engine", "landing", "applying", "shipping", "link", "telling", "writing", "receiving")
LATE_MS = 3.0
Times = npt.NDArray[np.float64]  # milliseconds


class StampError(ValueError):
    """The stamps are not of one decode worker and one router; the message gives the reason."""


def of_stage(rows: Rows, stage: str) -> Rows:
    """The rows of a stage, in order of time."""
    found = rows[rows[:, 0] == STAGES.index(stage)]
    in_order: Rows = found[np.argsort(found[:, 3], kind="stable")]
    return in_order


def step_times(processes: Mapping[str, Rows]) -> Times:
    """`[steps, 1 + hops]`: for each step of the worker that ships most tokens, when it was sampled
    and when each of its hops ended. Messages without results of a step (a load report, a first
    token) are skipped. Raises `StampError`."""
    worker = max(processes.values(), key=lambda rows: int(of_stage(rows, "shipped")[:, 1].sum()))
    shipped = of_stage(worker, "shipped")
    router = max(processes.values(), key=lambda rows: len(of_stage(rows, "read")))
    read, told = of_stage(router, "read"), of_stage(router, "told")
    if not len(shipped) or not len(read):
        raise StampError("no worker has shipped, or no router has read, a single token")
    epochs = np.unique(read[:, 2])
    tokens = [int(read[read[:, 2] == epoch, 1].sum()) for epoch in epochs]
    epoch = epochs[int(np.argmax(tokens))]
    is_its = read[:, 2] == epoch
    n = min(int(is_its.sum()), len(shipped), int((told[:, 2] == epoch).sum()))
    if not (read[is_its][:n, 1] == shipped[:n, 1]).all():
        raise StampError("the router has read other messages than the worker has shipped")
    ends = [shipped[:n, 3], read[is_its][:n, 3], told[told[:, 2] == epoch][:n, 3]]
    # Writes and receipts before the next message is read, of this worker or another, belong to this
    # one: not every token that is read is written, since a decode worker repeats the first.
    following = np.searchsorted(read[:, 3], read[is_its][:n, 3], side="right")
    until = np.append(read[:, 3], np.iinfo(np.int64).max)[following]
    everyone = np.concatenate([*processes.values()])
    for rows in (of_stage(router, "written"), of_stage(everyone, "received")):
        last = _last_before(rows[:, 3], until) if len(rows) else ends[-1]
        ends.append(np.maximum(ends[-1], last))
    marks = [_last_before(of_stage(worker, "applied")[:, 3], ends[0])]
    for stage in ("landed", "sampled"):
        marks.insert(0, _last_before(of_stage(worker, stage)[:, 3], marks[0]))
    times = np.stack([*marks, *ends], axis=1)
    is_step = np.diff(times[:, 0], prepend=-1) > 0
    found: Times = times[is_step].astype(np.float64) / 1e6
    return found


def _last_before(times: npt.NDArray[np.int64], before: npt.NDArray[np.int64]) -> Any:
    """For each, the last time that is not after it; itself if there is none."""
    at = np.searchsorted(times, before, side="right") - 1
    return np.where(at >= 0, times[np.maximum(at, 0)], before)


def late_steps(times: Times, *, late_ms: float = LATE_MS) -> dict[str, Any]:
    """Percentiles of each hop, and how many late steps it caused."""
    taken = np.diff(times, axis=1)
    hops = np.column_stack([np.diff(times[:, 0]), taken[1:]])
    gaps = np.diff(times[:, -1])
    excess = hops - np.median(hops, axis=0)
    is_late = gaps - np.median(gaps) > late_ms
    worst = np.argmax(excess, axis=1)
    n_late = int(is_late.sum())
    return {
        "steps": len(gaps),
        "gap_p50_ms": _ms(np.median(gaps)),
        "gap_p99_ms": _ms(np.percentile(gaps, 99)),
        "late_ms": late_ms,
        "late_steps": n_late,
        "hops": {
            name: {
                "p50_ms": _ms(np.median(hops[:, i])),
                "p99_ms": _ms(np.percentile(hops[:, i], 99)),
                "max_ms": _ms(hops[:, i].max()),
                "late_steps": int((is_late & (worst == i)).sum()),
            }
            for i, name in enumerate(HOPS)
        },
    }


def pauses(rows: Rows) -> dict[str, Any]:
    """For one process, in milliseconds: garbage collections, and how late its thread woke."""
    found: dict[str, Any] = {}
    for stage in ("gc", "hiccup"):
        took = of_stage(rows, stage)[:, 1] / 1e6
        found[stage] = {
            "n": len(took),
            "over_1_ms": int((took > 1).sum()),
            "max_ms": _ms(took.max()) if len(took) else 0.0,
            "sum_ms": _ms(took.sum()),
        }
    return found


def _ms(value: Any) -> float:
    return round(float(value), 3)
