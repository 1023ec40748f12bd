"""Which way pages are copied to a peer."""

from __future__ import annotations

import pytest

from worker.copy_cost import CopyCost

MIB = 1 << 20


@pytest.mark.parametrize(
    ("page_bytes", "n_pages", "run_pages", "kernel"),
    [
        (8 * MIB, 64, 1, False),  # a copy takes 20 us: time enough to give the next command
        (8 * MIB, 1, 1, False),
        (768 * 1024, 512, 1, True),  # a copy takes less than its command
        (768 * 1024, 512, 16, False),
        (64 * 1024, 4096, 1, True),
        (64 * 1024, 1, 1, False),
    ],
)
def test_many_short_runs_go_by_kernel_and_long_ones_by_engines(
    page_bytes: int, n_pages: int, run_pages: int, kernel: bool
) -> None:
    assert CopyCost().takes_kernel(n_pages * page_bytes, n_pages // run_pages) is kernel


def test_engines_are_taken_though_they_are_a_little_slower() -> None:
    patient, strict = CopyCost(patience=2.0), CopyCost(patience=0.5)
    n_bytes, n_runs = 512 * 768 * 1024, 512
    assert strict.takes_kernel(n_bytes, n_runs)
    assert not patient.takes_kernel(n_bytes, n_runs)
