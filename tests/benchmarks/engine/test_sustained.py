"""Points that are measured for seconds on end, without a card."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

import torch

from benchmarks.engine import sustained as benchmark
from benchmarks.engine.points import LLAMA_8B, Point, Rates, Rows, Stored
from benchmarks.engine.sustained import Sustained, measure_sustained, sustain
from benchmarks.kernels.meter import card_samples, late_half, parse
from tests.benchmarks.tiny import write_tiny_config
from tests.until import wait_until
from twolane.engine.config import EngineConfig
from twolane.engine.cuda.startup.load import load_cuda_engine

UUID = "00000000-1111-2222-3333-444444444444"


@pytest.fixture(autouse=True)
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvidia-smi that falls to its limit; the file has the arguments it was called with."""
    asked, program = tmp_path / "asked", tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        'for watts in 120 300 650 700; do echo "1980, $watts.50"; done\n'
        "for _ in 1 2 3 4; do echo '1410, 699.25'; done\n"
        f'echo "$@" > {asked}\nexec sleep 60\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=UUID)
    )
    return asked


def test_clock_and_power_are_those_of_the_second_half(card: Path) -> None:
    with card_samples() as samples:
        wait_until(lambda: card.exists() and card.read_text(), "what nvidia-smi was asked")
    asked = card.read_text().split()
    assert f"--id=GPU-{UUID}" in asked
    assert "--query-gpu=clocks.sm,power.draw" in asked
    cold = [(1980.0, watts + 0.5) for watts in (120, 300, 650, 700)]
    assert samples == [*cold, *[(1410.0, 699.25)] * 4]
    assert late_half(samples) == (1410.0, 699.25)


def test_lines_without_numbers_and_a_cut_one_are_left_out() -> None:
    assert parse("1980, 120.50\n[N/A], [N/A]\n\n1410, 699.25\n14") == [
        (1980.0, 120.5), (1410.0, 699.25)
    ]  # fmt: skip


def test_a_card_that_tells_nothing_is_said_to() -> None:
    assert late_half(parse("[N/A], [N/A]\n")) == (None, None)


def test_what_is_slower_once_warm_counts_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 1.0)  # each look at it is a second later
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    times = itertools.chain([0.1] * 8, itertools.repeat(0.2))  # more than half of 15
    assert sustain(lambda: next(times), seconds=30).time_s == 0.2


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
def test_shares_are_of_what_the_card_multiplies_at_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    product_s = iter([2 * 8192**3 / 800e12] * 2 + [2 * 8192**3 / 600e12] * 2)
    monkeypatch.setattr(benchmark, "bf16_products", lambda: lambda: next(product_s))
    monkeypatch.setattr(benchmark, "_once_s", lambda engine, rows: 12e-3)
    model = write_tiny_config(tmp_path)
    config = EngineConfig(model_dir=model, n_pages=64, load_format="random", exact=False)
    engine = load_cuda_engine(config, device=torch.device("cpu"))
    point = Point("prefill", 1, 512)
    found = measure_sustained(engine, [point], Rates(4.5e12, 790e12), LLAMA_8B, Stored(), 0)
    assert found["products_before"]["bf16"]["tflop_per_s"] == pytest.approx(800, abs=0.1)
    assert found["products_after"]["bf16"]["tflop_per_s"] == pytest.approx(600, abs=0.1)
    (its,) = found["points"]
    assert (its["name"], its["time_ms"]) == ("prefill:1x512", 12.0)
    roofline_s = point.roofline_s(Rates(4.5e12, 700e12))
    assert its["share_of_roofline"] == pytest.approx(roofline_s / 12e-3, abs=0.001)


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
def test_a_decode_point_is_measured_from_the_same_contexts_again(tmp_path: Path) -> None:
    model = write_tiny_config(tmp_path)
    config = EngineConfig(model_dir=model, n_pages=16, load_format="random", exact=False)
    engine = load_cuda_engine(config, device=torch.device("cpu"))
    rows = Rows(Point("decode", 2, 20), engine.spec)
    assert benchmark._once_s(engine, rows) > 0
    assert [len(tokens) for tokens in rows.tokens] == [21, 21]


def test_figures_have_no_more_digits_than_the_card_has() -> None:
    assert Sustained(1.0, 1410.0, 698.2549).to_json() == {"clock_mhz": 1410.0, "watts": 698.3}
    assert Sustained(1.0, None, None).to_json() == {"clock_mhz": None, "watts": None}
