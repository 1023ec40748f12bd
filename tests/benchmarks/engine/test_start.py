"""Starts of new processes, on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine.start import STAGES, measure_starts
from tests.benchmarks.tiny import write_tiny_config


def test_a_start_is_timed_stage_by_stage(tmp_path: Path) -> None:
    found = measure_starts(
        write_tiny_config(tmp_path),
        device="cpu", dtype="float32", n_pages=40, exact=False, n_warm=1,
    )  # fmt: skip
    for start in (found["cold"], *found["warm"]):
        times = [start[f"{stage}_s"] for stage in STAGES]
        assert times == sorted(times)
    assert found["cold_s"] == found["cold"]["first_token_s"] > 0


def test_a_start_that_fails_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with 1"):
        measure_starts(tmp_path, device="cpu", dtype="float32", n_pages=40, exact=False)
