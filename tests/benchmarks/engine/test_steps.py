"""The engine benchmark without a card: its arithmetic, and its way of driving an engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import torch

from benchmarks.engine import steps as benchmark
from benchmarks.engine.points import (
    DECODE_STEPS,
    Point,
    Rates,
    Rows,
    Stored,
    decode_s,
    pages_for,
    prefill_s,
)
from benchmarks.engine.steps import VLLM_MS, profile
from benchmarks.kernels.card import Table
from tests.benchmarks.tiny import write_tiny_config
from twolane.engine.config import EngineConfig
from twolane.engine.cuda.startup.load import load_cuda_engine
from twolane.engine.step import Engine

H200 = Rates(read=4.45e12, matmul=809e12, fp8_matmul=1500e12)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    config = EngineConfig(
        model_dir=write_tiny_config(tmp_path), n_pages=16, load_format="random", exact=False
    )
    return load_cuda_engine(config, device=torch.device("cpu"))


def test_the_points_are_those_that_vllm_was_measured_at() -> None:
    decode = {(1, 128), (1, 4096), *((n, 1024) for n in (8, 32, 64, 128, 256)), (64, 4096)}
    prefill = {(1, 512), (1, 2048), (1, 8192), (16, 2048), (32, 4096)}
    points = [Point.parse(name) for name in VLLM_MS]
    assert {(p.rows, p.tokens) for p in points if p.kind == "decode"} == decode
    assert {(p.rows, p.tokens) for p in points if p.kind == "prefill"} == prefill
    assert len(points) == len(decode) + len(prefill)


@pytest.mark.parametrize(
    ("name", "floor_ms"),
    [
        # 15.0 GB of weights and 128 KiB of keys and values a token, at 4.45 TB/s
        ("decode:1x128", 3.4), ("decode:64x1024", 5.5), ("decode:64x4096", 11.2),
        # at 256 rows the products are bound by operations: 4.7 ms, and 8.0 ms of keys and values
        ("decode:256x1024", 12.7),
        # 14.0 GFLOP a token, and 4 * 4,096 a layer and pair of positions, at 809 TFLOP/s
        ("prefill:1x2048", 36.8), ("prefill:16x2048", 16 * 36.8),
    ],
)  # fmt: skip
def test_rooflines_are_those_worked_out_by_hand(name: str, floor_ms: float) -> None:
    assert Point.parse(name).roofline_s(H200) * 1e3 == pytest.approx(floor_ms, rel=0.04)


@pytest.mark.parametrize(
    ("name", "stored", "floor_ms"),
    [
        # 7.0 GB of layers' weights and a head of 1.05
        ("decode:1x128", Stored(weights="fp8"), 1.81),
        # 132 bytes instead of 256 a token and head, at 4,126 tokens
        ("decode:64x4096", Stored(kv_dtype="fp8"), 3.37 + 4.01),
        ("prefill:1x2048", Stored(weights="fp8"), 20.5),
    ],
)
def test_what_is_stored_as_fp8_counts_as_such(name: str, stored: Stored, floor_ms: float) -> None:
    point = Point.parse(name)
    assert point.roofline_s(H200, stored=stored) * 1e3 == pytest.approx(floor_ms, rel=0.04)


def test_the_pool_has_room_for_each_point_alone() -> None:
    assert pages_for([Point("decode", 3, 64 - DECODE_STEPS), Point("prefill", 2, 65)]) == 6
    assert pages_for(map(Point.parse, VLLM_MS)) * 8 < 40_000, "40 GB at 8 MiB a page"


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
def test_points_are_measured_a_step_ahead(engine: Engine) -> None:
    assert len(decode_s(engine, Rows(Point("decode", 2, 20), engine.spec), 6)) == 2
    assert prefill_s(engine, Rows(Point("prefill", 2, 70), engine.spec)) > 0


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
def test_a_profile_is_a_trace_and_a_table(engine: Engine, tmp_path: Path) -> None:
    profile(engine, Point("decode", 1, 5), tmp_path / "traces")
    assert "traceEvents" in (tmp_path / "traces/decode_1x5.json").read_text()
    assert "Self CPU" in (tmp_path / "traces/decode_1x5.txt").read_text()


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
@pytest.mark.parametrize("card", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"])
def test_a_run_saves_ceilings_points_mix_starts_and_the_commit(
    card: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(H200.read, H200.matmul, [{"name": "ceilings", "read_tb_per_s": 4.45}])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: card)
    monkeypatch.setattr(benchmark, "measure_ceilings", lambda: table)
    monkeypatch.setattr(benchmark, "measure_starts", lambda folder, **_: {"cold_s": 9.0})
    monkeypatch.setattr(benchmark, "measure_mix", lambda engine: {"time_s": 30.0})
    monkeypatch.setattr(benchmark, "load", lambda config, tuning, shape: engine)
    monkeypatch.setattr(benchmark, "Rows", lambda point, spec: Rows(Point("decode", 1, 9), spec))
    options = ["--points", "prefill:1x512", "--mix", "--startup", "--commit", "abc"]
    options += ["--rounds", "2"]
    monkeypatch.setattr(sys, "argv", ["engine", *options, "--folder", str(tmp_path)])
    assert benchmark.main() == 0
    saved = json.loads((tmp_path / "engine.json").read_text())
    assert saved["commit"]
    figures = saved["figures"]
    assert figures["ceilings"]["read_tb_per_s"] == 4.45
    assert (figures["startup"], figures["mix"]) == ({"cold_s": 9.0}, {"time_s": 30.0})
    (point,) = figures["points"]
    assert point["name"] == "prefill:1x512"
    least_ms, most_ms = sorted(point["rounds_ms"])
    assert least_ms <= point["time_ms"] <= most_ms
    assert point["best_ms"] <= least_ms
    if card == "NVIDIA H200":
        assert point["of_vllm"] == pytest.approx(point["time_ms"] / 14.8, abs=0.001)
    else:
        assert point["of_vllm"] is None, "vLLM was not measured on that card"
    assert point["share_of_roofline"] == pytest.approx(
        point["roofline_ms"] / point["time_ms"], abs=0.001
    )
