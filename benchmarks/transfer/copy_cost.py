"""Measures copies of scattered pages to another GPU, and fits the constants of `CopyCost`.

kernel N    `n` scattered pages by the kernel with N programs      seconds: start + bytes / rate
engines     `n` runs of `m` pages by the copy engines              to submit: start + n * run start
                                                                   to move: n * gap + bytes / rate

Each time is the best of several; fits minimise relative errors. A setting of the copy engines in
which submitting takes nearly the whole time says nothing about moving, and is left out of that fit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.transfer.far_pool import far_pool
from benchmarks.transfer.pools import open_pool
from twolane.kvtransfer.copy_plan import PageIds
from twolane.worker.cuda.copy_cost import CopyCost

PROGRAMS = (8, 16, 32, 64)
PAGE_BYTES = (64 << 10, 256 << 10, 768 << 10, 2 << 20, 8 << 20)
COUNTS = (1, 4, 16, 64, 256, 1024)
RUN_PAGES = (1, 4, 16)
MOST_BYTES = 1 << 30  # of one setting
_ROUNDS = 8
_MOVING = 1.3  # times as long as giving, at least


@dataclass(frozen=True, slots=True)
class Sample:
    """One setting; `programs` is 0 for the copy engines. Times in seconds until all copies are
    submitted, and until all are done."""

    programs: int
    n_bytes: int
    n_runs: int
    given_s: float
    over_s: float


def measure(far_device: str, console: Console) -> dict[str, Any]:
    """Measure copies from this process' first GPU to `far_device`. Prints the results and returns
    them for saving."""
    samples = [sample for size in PAGE_BYTES for sample in _of_size(far_device, size)]
    found = fit(samples)
    for programs, cost in found.items():
        errors = [abs(_predicted(cost, s) / s.over_s - 1) for s in _which(samples, (0, programs))]
        worse = [_regret(cost, *pair) for pair in _pairs(samples, programs)]
        console.print(f"{programs} programs: {cost}")
        console.print(
            f"  times are {np.median(errors):.0%} (median), {max(errors):.0%} (most) off; "
            f"what it takes is slower than the other by up to {max(worse):.0%}"
        )
    return {
        "samples": [asdict(sample) for sample in samples],
        "fitted": {str(programs): asdict(cost) for programs, cost in found.items()},
    }


def fit(samples: Sequence[Sample]) -> dict[int, CopyCost]:
    """The fitted constants by the kernel's number of programs; those of the copy engines are equal
    in all."""
    engines = _which(samples, (0,))
    start, run_start = _fitted([[1, s.n_runs] for s in engines], [s.given_s for s in engines])
    moving = [s for s in engines if s.over_s - start > _MOVING * s.n_runs * run_start]
    run_gap, per_byte = _fitted(
        [[s.n_runs, s.n_bytes] for s in moving], [s.over_s - start for s in moving]
    )
    base = CopyCost(
        engines_start_s=start,
        run_start_s=run_start,
        run_gap_s=run_gap,
        run_bytes_per_s=1 / per_byte,
    )
    found = {}
    for programs in sorted({s.programs for s in samples} - {0}):
        own = _which(samples, (programs,))
        start, each = _fitted([[1, s.n_bytes] for s in own], [s.over_s for s in own])
        found[programs] = replace(base, kernel_start_s=start, kernel_bytes_per_s=1 / each)
    return found


def _fitted(rows: list[list[float]], times: list[float]) -> list[float]:
    """Non-negative coefficients that fit the times with the least relative error."""
    weights = 1 / np.asarray(times)
    matrix = np.asarray(rows, dtype=np.float64) * weights[:, None]
    scale = matrix.max(0)
    found, *_ = np.linalg.lstsq(matrix / scale, np.ones(len(times)), rcond=None)
    return [float(x) for x in np.maximum(found / scale, 1e-15)]


def _which(samples: Sequence[Sample], programs: Sequence[int]) -> list[Sample]:
    return [sample for sample in samples if sample.programs in programs]


def _predicted(cost: CopyCost, sample: Sample) -> float:
    if sample.programs:
        return cost.kernel_s(sample.n_bytes)
    return cost.engines_s(sample.n_bytes, sample.n_runs)


def _pairs(samples: Sequence[Sample], programs: int) -> list[tuple[Sample, Sample]]:
    """Pairs of measurements of the same pages: by the copy engines, and by the kernel."""
    kernels = {(s.n_bytes, s.n_runs): s for s in _which(samples, (programs,))}
    return [
        (s, kernels[s.n_bytes, s.n_runs])
        for s in _which(samples, (0,))
        if (s.n_bytes, s.n_runs) in kernels
    ]


def _regret(cost: CopyCost, engines: Sample, kernel: Sample) -> float:
    """How much slower the chosen way is than the other one, as a share."""
    takes = cost.takes_kernel(engines.n_bytes, engines.n_runs)
    chosen, other = (kernel, engines) if takes else (engines, kernel)
    return max(0.0, chosen.over_s / other.over_s - 1)


def _of_size(far_device: str, page_bytes: int) -> list[Sample]:
    from twolane.worker.cuda.copy_stream import CopyStreamConfig

    most = MOST_BYTES // page_bytes
    pool = open_pool("cuda", 2 * most, page_bytes, fill=True)
    memory: Any = pool.transfers
    samples = []
    rng = np.random.default_rng(4)
    with far_pool(far_device, 2 * most, page_bytes) as address:
        peer = memory.open_peer(address)
        for programs in (0, *PROGRAMS):
            cost = CopyCost(run_start_s=1.0) if programs else CopyCost(kernel_start_s=1.0)
            memory.config = CopyStreamConfig(cost=cost, copy_programs=programs or 1)
            lane = memory.open_copy_stream()
            for run_pages in RUN_PAGES if not programs else RUN_PAGES[:1]:
                for n_runs in COUNTS:
                    if n_runs * run_pages > most:
                        continue
                    src, dst = (_places(rng, 2 * most, n_runs, run_pages) for _ in range(2))
                    given, over = _best(lane, peer, src, dst)
                    size = src.size * page_bytes
                    samples.append(Sample(programs, size, n_runs, given, over))
            lane.close()
        peer.close()
    pool.close()
    return samples


def _places(rng: np.random.Generator, n_pages: int, n_runs: int, run_pages: int) -> PageIds:
    """Runs of pages that are not adjacent to each other."""
    starts = rng.permutation(n_pages // (run_pages + 1) or 1)[:n_runs] * (run_pages + 1)
    return (starts[:, None] + np.arange(run_pages)).reshape(-1)


def _best(lane: Any, peer: Any, src: PageIds, dst: PageIds) -> tuple[float, float]:
    given, over = [], []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        lane.to_peer(peer, src, dst)
        given.append(time.perf_counter() - began)
        fence = lane.mark()
        while not fence.is_done():
            pass
        over.append(time.perf_counter() - began)
    return min(given[1:]), min(over[1:])
