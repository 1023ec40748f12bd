"""What is shipped about GPUs is what was measured."""

from __future__ import annotations

import json

import pytest

from benchmarks.engine.priors import FILE, priors
from benchmarks.results import RESULTS
from twolane.deploy.controller.priors import UnknownGpuError, hardware, known_gpus


def test_the_shipped_file_is_what_the_saved_results_give() -> None:
    assert json.loads(FILE.read_text()) == priors()


def test_costs_are_within_six_percent_of_every_measured_step() -> None:
    h200 = hardware("h200")
    points = json.loads((RESULTS / "engine.json").read_text())["figures"]["points"]
    for point in points:
        kind, _, size = point["name"].partition(":")
        n, length = (int(part) for part in size.split("x"))
        if kind == "decode":
            step_s = h200.decode.step_s(n, n * length)
        elif kind == "prefill":
            step_s = h200.prefill.step_s(n * length, n * length * length)
        else:
            continue
        assert step_s * 1e3 == pytest.approx(point["best_ms"], rel=0.06), point["name"]


def test_an_unknown_gpu_is_told_with_those_that_are_known() -> None:
    assert known_gpus() == ["h200"]
    with pytest.raises(UnknownGpuError, match="'abacus' was not measured; there is h200"):
        hardware("abacus")
