"""Constants of copies, out of times that were made from known ones."""

from __future__ import annotations

import random

import pytest

from benchmarks.transfer.copy_cost import Sample, fit
from twolane.worker.cuda.copy_cost import CopyCost

TRUE = CopyCost(
    kernel_start_s=33e-6,
    kernel_bytes_per_s=320e9,
    engines_start_s=14e-6,
    run_start_s=2.2e-6,
    run_gap_s=0.9e-6,
    run_bytes_per_s=385e9,
)


def samples(noise: float) -> list[Sample]:
    rng = random.Random(1)
    found = []
    for page_bytes in (64 << 10, 768 << 10, 8 << 20):
        for n_runs in (1, 4, 16, 64, 256):
            for run_pages in (1, 4, 16):
                size = n_runs * run_pages * page_bytes
                off = 1 + rng.uniform(-noise, noise)
                given = TRUE.engines_start_s + n_runs * TRUE.run_start_s
                over = TRUE.engines_s(size, n_runs)
                found.append(Sample(0, size, n_runs, given * off, over * off))
                found.append(Sample(32, size, n_runs, 20e-6, TRUE.kernel_s(size) * off))
                found.append(Sample(8, size, n_runs, 20e-6, 3 * TRUE.kernel_s(size) * off))
    return found


@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.01), (0.05, 0.15)])
def test_known_constants_are_found_again(noise: float, within: float) -> None:
    found = fit(samples(noise))
    assert set(found) == {8, 32}
    for name in ("kernel_start_s", "kernel_bytes_per_s", "run_start_s", "run_bytes_per_s"):
        assert getattr(found[32], name) == pytest.approx(getattr(TRUE, name), rel=within)
    assert found[32].run_gap_s == pytest.approx(TRUE.run_gap_s, rel=5 * within)
    assert found[8].kernel_bytes_per_s == pytest.approx(TRUE.kernel_bytes_per_s / 3, rel=within)
    assert found[8].run_bytes_per_s == found[32].run_bytes_per_s
