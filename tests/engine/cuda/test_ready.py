"""An engine that says it is ready makes no step wait for a compiler; on a card, see tests/gpu."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from twolane.engine.config import EngineConfig
from twolane.engine.errors import EngineConfigError
from twolane.engine.progress import Loaded, Readied
from twolane.engine.step import Page, RowWork
from twolane.engine.testing import write_random_model
from twolane.params import SamplingParams

pytest.importorskip("triton")

from triton import knobs
from triton.runtime._async_compile import active_mode

from twolane.engine.cuda.plans import BUCKETS, MAX_ROWS, prompt_bucket_for
from twolane.engine.cuda.startup.step_shapes import PassKind, StepShapes, mixed_kinds
from twolane.engine.kernels.compile_ahead import CompileAhead
from twolane.engine.kernels.launch import Take

ROOT = Path(__file__).parents[3]


def dry_runs(*arguments: str) -> dict[str, Any]:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("dry_runs.py"), *arguments],
        env=env | {"PYTHONPATH": os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_random_steps_ask_for_no_kernel_that_dry_runs_miss() -> None:
    found = dry_runs()
    calls = found["calls"]
    # The down product of the longest prompt; the head's, of all rows of the largest step.
    assert ["_library_product", 8192, 4096, 14_336] in calls["llama"]
    assert ["_library_product", 384, 128_256, 4096] in calls["llama"]
    assert ["fp8_product", 8192, 4096, 14_336] in calls["llama fp8 weights"]
    assert ["unscaled_product", 384, 4096, 14_336] in calls["llama fp8 weights"]
    assert calls["llama exact"] == [], "probes load what exact mode takes"
    # As some of torch's rules for `meta` do: half a second, before the first kernel is known.
    assert not found["imports_sympy"]
    report = found["engines"]
    forgotten = [report.pop(name) for name in [*report] if "forgotten" in name]
    assert len(report) > 10
    assert {name: found["missing"] for name, found in report.items() if found["missing"]} == {}
    assert [bool(one["missing"]) for one in forgotten] == [True, True], "this test could not fail"
    # Each variant is taken once, of all launches.
    assert all(found["taken"] == found["covered"] for found in report.values())
    assert all(found["launches"] > 2 * found["covered"] for found in report.values())
    # Nothing is compiled in vain, but what few random steps do not happen to meet.
    assert all(found["never_asked"] < found["covered"] / 3 for found in report.values())


def test_every_launch_of_a_step_has_a_dry_run() -> None:
    """A dry run does not see `kernel[grid](...)`."""
    # The worker launches it, for layouts that no engine knows.
    converting_pages = {"page_convert.py"}
    launches = {
        path.name: ast.unparse(node.func)
        for path in (ROOT / "engine").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
        if ast.unparse(node.func.value).endswith("kernel")
    }
    assert launches.keys() - converting_pages == set()
    assert launches, "this test could not fail"


def test_nothing_is_compiled_once_all_was_compiled_ahead() -> None:
    report = dry_runs("compiled")
    assert report["ahead"] > 10
    assert report["counts"] == [report["ahead"]] * 2
    assert report["afterwards"] == []


def test_what_a_dry_run_or_a_compiler_raises_is_raised_to_who_waits() -> None:
    def fails(take: Take) -> None:
        raise ValueError("registers")

    with CompileAhead(fails, threads=1) as ahead, pytest.raises(ValueError, match="registers"):
        ahead.wait(lambda done, of: None)


class Kernel:
    """As Triton's, which hands its compiler to the active mode's executor."""

    def __init__(self, compile_one: Callable[[int], Any]) -> None:
        self._compile_one = compile_one

    def warmup(self, n: int, *, grid: tuple[int, ...]) -> None:
        mode = active_mode.get()
        assert mode is not None
        mode.submit(n, partial(self._compile_one, n), lambda kernel: None)


def test_compiling_begins_when_all_kernels_are_known() -> None:
    began = threading.Event()
    compiled: list[int] = []

    def compile_one(n: int) -> Any:
        began.set()
        compiled.append(n)
        return mock.Mock()

    def dry_run_launches(take: Take) -> None:
        for n in range(3):
            take(Kernel(compile_one), (1,), n)
        assert not began.wait(0.2)

    with CompileAhead(dry_run_launches, threads=2) as ahead:
        ahead.wait(lambda done, of: None)
    assert sorted(compiled) == [0, 1, 2]


def test_kernels_that_have_not_begun_are_dropped_when_loading_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, release = threading.Event(), threading.Event()
    compiled: list[int] = []

    def compile_one(n: int) -> None:
        began.set()
        release.wait()
        compiled.append(n)

    def dry_run_launches(take: Take) -> None:
        for n in range(5):
            take(Kernel(compile_one), (1,), n)

    def fail() -> None:
        with CompileAhead(dry_run_launches, threads=1) as ahead:
            began.wait()
            shutdown = ahead._pool.shutdown

            def shut(**how: bool) -> None:  # the one that has begun goes on once others are dropped
                shutdown(**how)
                release.set()

            monkeypatch.setattr(ahead._pool, "shutdown", shut)
            raise MemoryError

    with pytest.raises(MemoryError):
        fail()
    assert compiled == [0]


def test_short_prompts_have_a_bucket_which_is_a_power_of_two_in_exact_mode() -> None:
    sizes = {exact: [prompt_bucket_for(n, 512, exact=exact) for n in (2, 129, 193, 321, 512)]
             for exact in (False, True)}  # fmt: skip
    assert sizes == {False: [16, 192, 256, 384, 512], True: [16, 256, 256, 512, 512]}
    assert prompt_bucket_for(513, 512, exact=False) is None
    assert [prompt_bucket_for(n, 2048, exact=False) for n in (513, 1025, 2049)] == [640, 1152, None]
    long = [prompt_bucket_for(n, 2048, exact=True) for n in (513, 895, 896, 1791, 1792)]
    assert long == [None, None, 1024, None, 2048]
    assert prompt_bucket_for(129, 128, exact=False) is None
    captured = StepShapes(rows=0, tokens=100).prompt_buckets(exact=False)
    assert captured == [128, 64, 32, 16]
    assert StepShapes(rows=8, tokens=1).prompt_buckets(exact=False) == []


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("tokens", [2, 100, 129, 257, 513, 896, 1025, 1792, 1920, 2048, 8192])
def test_every_bucket_that_steps_may_need_is_captured_and_no_other(
    tokens: int, *, exact: bool
) -> None:
    needed = {prompt_bucket_for(n, 2048, exact=exact) for n in range(2, tokens + 1)}
    captured = StepShapes(rows=8, tokens=tokens).prompt_buckets(exact=exact)
    assert {*captured} == needed - {None}
    assert captured == sorted(captured, reverse=True)


@pytest.mark.parametrize("rows", [1, 16, 17, 256, 1000, 1024, 5000])
def test_graphs_are_captured_for_all_rows_largest_first(rows: int) -> None:
    buckets = StepShapes(rows=rows, tokens=1).buckets
    assert buckets == sorted(buckets, reverse=True)
    assert set(buckets) == {size for size in BUCKETS if size <= buckets[0]}
    assert buckets[0] > rows or buckets[0] == MAX_ROWS


def test_nothing_is_made_ready_where_no_steps_are_usual() -> None:
    usual = StepShapes(rows=0, tokens=0)
    assert not usual.any
    assert usual.buckets == []
    assert mixed_kinds(usual, many_rows_from=None) == []


def test_passes_stay_within_the_steps_that_are_usual() -> None:
    for tokens in (2, 3, 100, 2048, 8192):
        kinds = mixed_kinds(StepShapes(rows=256, tokens=tokens), many_rows_from=896)
        assert max(kind.tokens for kind in kinds) == tokens
        assert kinds == sorted(kinds, key=lambda kind: -kind.tokens)
    assert PassKind(0, 896, 1) in kinds


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # in rows of padding
def test_a_ready_engine_has_its_graphs_an_empty_pool_and_the_same_answers(
    model_dir: Callable[[str], Path],
) -> None:
    from twolane.engine.cuda.engine import CudaEngine
    from twolane.engine.cuda.startup.load import load_cuda_engine

    def engine(told: list[Loaded | Readied], rows: int, tokens: int) -> CudaEngine:
        config = EngineConfig(
            model_dir=model_dir("mistral"),
            n_pages=3,
            exact=False,
            page_tokens=64,
            ready_rows=rows,
            ready_tokens=tokens,
        )
        return load_cuda_engine(config, device=torch.device("cpu"), progress=told.append)

    def answers(engine: CudaEngine) -> list[tuple[int, ...]]:
        greedy = SamplingParams(temperature=0.0)
        prompt = RowWork(1, [5, 6, 7], 0, 3, [Page(1)], 3, greedy, True)
        following = RowWork(1, [5, 6, 7], 3, 1, [Page(1)], 3, greedy, True, follows=True)
        steps = [engine.submit([prompt]), engine.submit([following])]
        return [tuple(t.token for t in step.result()[0].tokens) for step in steps]

    told: list[Loaded | Readied] = []
    ready, other = engine(told, 1, 4), engine([], 0, 0)
    assert {shape.rows for shape in ready._graphs._captured} == {1, 2}
    assert other._graphs._captured == {}
    assert ready._memory is not None
    assert not ready._memory.tensor.any()
    passes = [news for news in told if isinstance(news, Readied)]
    assert [news.done for news in passes] == list(range(1, passes[-1].of + 1))
    assert [news.is_last for news in passes] == [False] * (len(passes) - 1) + [True]
    assert answers(ready) == answers(other)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # in rows of padding
def test_passes_with_chunks_are_made_through_few_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They load what all layers take, and a deep model is ready as soon as a shallow one."""
    from twolane.engine.cuda.model import CudaModel
    from twolane.engine.cuda.startup.load import load_cuda_engine

    model = write_random_model(tmp_path, "llama", seed=1, layers=4)
    chunks: set[int] = set()
    attend = CudaModel._attention

    def attention(self: CudaModel, layer: int, *others: Any) -> torch.Tensor:
        n_decode = others[3]
        if n_decode < len(others[1]):
            chunks.add(layer)
        return attend(self, layer, *others)

    monkeypatch.setattr(CudaModel, "_attention", attention)
    config = EngineConfig(
        model_dir=model, n_pages=3, exact=False, page_tokens=64, ready_rows=1, ready_tokens=4
    )
    engine = load_cuda_engine(config, device=torch.device("cpu"))
    assert chunks == {0, 1}
    engine.run([RowWork(1, [5, 6], 0, 2, [Page(1)], 2, SamplingParams(temperature=0.0), True)])
    assert chunks == {0, 1, 2, 3}


def test_compiling_ahead_leaves_triton_as_it_was() -> None:
    before = knobs.compilation.store_binary_only
    with CompileAhead(lambda take: None, threads=1):
        assert knobs.compilation.store_binary_only
    assert knobs.compilation.store_binary_only == before


def test_less_than_no_rows_are_refused() -> None:
    with pytest.raises(EngineConfigError, match="ready_rows is -1; it must be at least 0"):
        EngineConfig(model_dir=Path(), ready_rows=-1)
