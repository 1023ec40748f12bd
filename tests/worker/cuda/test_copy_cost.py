"""Which way pages are copied to a peer."""

from __future__ import annotations

import pytest

from twolane.worker.cuda.copy_cost import CopyCost

MIB, KIB = 1 << 20, 1 << 10


@pytest.mark.parametrize(
    ("page_bytes", "n_pages", "run_pages", "kernel"),
    [
        (8 * MIB, 128, 1, False),  # a copy takes 20 us: time enough to give the next command
        (8 * MIB, 16, 1, False),
        (8 * MIB, 1, 1, False),
        (768 * KIB, 1024, 1, False),  # 2 us, twice as long as its command
        (768 * KIB, 16, 1, False),
        (768 * KIB, 1024, 16, False),
        (64 * KIB, 4096, 1, True),  # a sixth of its command
        (64 * KIB, 4096, 16, False),
        (64 * KIB, 1, 1, False),
        (4 * KIB, 4, 1, False),  # so few that starting either takes longer
        (4 * KIB, 1024, 1, True),
        (4 * KIB, 1024, 64, False),
    ],
)
def test_a_kernel_takes_many_tiny_runs_and_engines_all_else(
    page_bytes: int, n_pages: int, run_pages: int, kernel: bool
) -> None:
    assert CopyCost().takes_kernel(n_pages * page_bytes, n_pages // run_pages) is kernel


@pytest.mark.parametrize(
    ("page_bytes", "n_pages", "measured"),
    [(8 * MIB, 128, 385e9), (8 * MIB, 16, 355e9), (768 * KIB, 1024, 344e9)],
)
def test_engines_are_as_quick_as_they_were_measured(
    page_bytes: int, n_pages: int, measured: float
) -> None:
    n_bytes = page_bytes * n_pages
    assert n_bytes / CopyCost().engines_s(n_bytes, n_pages) == pytest.approx(measured, rel=0.05)


def test_engines_are_taken_though_they_are_a_little_slower() -> None:
    patient, strict = CopyCost(patience=2.0), CopyCost(patience=0.5)
    n_bytes, n_runs = 512 * 768 * KIB, 512
    assert strict.takes_kernel(n_bytes, n_runs)
    assert not patient.takes_kernel(n_bytes, n_runs)
