"""The whole path on a CPU: processes that meet over gloo, load their parts, and compute."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import twolane.engine.ranks.group as group_module
from tests.own_time import own_time
from twolane.engine.config import EngineConfig
from twolane.engine.errors import CheckpointError, EngineConfigError, RankLostError
from twolane.engine.load import load_engine
from twolane.engine.progress import Loaded, Readied
from twolane.engine.ranks.group import RankGroup
from twolane.engine.step import Page, RowWork, SampledToken
from twolane.params import SamplingParams

ModelDir = Callable[[str], Path]
GREEDY = SamplingParams(temperature=0.0, top_logprobs=2)
PROMPT = [(37 * i) % 250 + 3 for i in range(40)]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A death is heard of late on a machine that stalls: what follows from it waits for longer.
    `test_group.py` bounds what ships: there a rank fails and none has died."""
    monkeypatch.setattr(group_module, "_CAUSE_S", 60 * group_module._CAUSE_S)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(("family", "ranks"), [("llama", 2), ("qwen2", 4)])
def test_processes_answer_what_one_engine_answers_and_end_when_one_is_killed(
    family: str, ranks: int, model_dir: ModelDir, answer: Callable[..., list[SampledToken]]
) -> None:
    """qwen2 has fewer key-value heads than ranks here."""
    config = EngineConfig(model_dir=model_dir(family), n_pages=8, device="cpu")
    expected = answer(load_engine(config), PROMPT, GREEDY, 8)
    news: list[Loaded | Readied] = []
    several = EngineConfig(
        model_dir=model_dir(family), n_pages=8, device="cpu", tensor_parallel=ranks
    )
    group = load_engine(several, progress=news.append)
    assert isinstance(group, RankGroup)
    try:
        told = [loaded for loaded in news if isinstance(loaded, Loaded)]
        assert told[-1].tensors == told[-1].of_tensors > 0
        assert told[-1].n_bytes == told[-1].of_bytes > 0
        pages = [Page(i) for i in range(8)]
        found = answer(group, PROMPT, GREEDY, 8, pages=pages)
        assert [t.token for t in found] == [t.token for t in expected]
        assert [t.logprob for t in found] == pytest.approx([t.logprob for t in expected], abs=1e-4)
        # Stopped, rank 1 leaves the others waiting for it inside a sum.
        os.kill(group.pids[1], signal.SIGSTOP)
        step = group.submit([RowWork(0, PROMPT, 0, 40, pages, 40, GREEDY, True)])
        time.sleep(0.3)
        with own_time() as took:
            os.kill(group.pids[1], signal.SIGKILL)
            with pytest.raises(RankLostError, match="rank 1 was killed by SIGKILL"):
                step.result()
        assert took.s() < 5, "not because it is silent"
    finally:
        group.close()
    assert not any(psutil.pid_exists(pid) for pid in group.pids)


@pytest.mark.usefixtures("patience")
def test_the_rank_that_died_is_named_though_another_was_first_to_fail(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = group_module._ending

    def late(process: subprocess.Popen[bytes]) -> str:
        time.sleep(0.5)  # by now the other has said that the connection was reset
        return ending(process)

    monkeypatch.setattr(group_module, "_ending", late)
    config = EngineConfig(model_dir=model_dir("llama"), n_pages=8, device="cpu", tensor_parallel=2)
    group = load_engine(config)
    assert isinstance(group, RankGroup)
    try:
        os.kill(group.pids[1], signal.SIGSTOP)
        step = group.submit([RowWork(0, PROMPT, 0, 40, [Page(0)] * 3, 40, GREEDY, True)])
        time.sleep(0.3)
        os.kill(group.pids[1], signal.SIGKILL)
        with pytest.raises(RankLostError, match="rank 1 was killed by SIGKILL"):
            step.result()
    finally:
        group.close()


def test_what_no_rank_can_load_is_told_as_one_engine_tells_it(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    nowhere = EngineConfig(model_dir=tmp_path, device="cpu", tensor_parallel=2)
    before = set(psutil.Process().children())  # of tests that ran in this process
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load_engine(nowhere)
    assert set(psutil.Process().children()) <= before


def test_ranks_need_the_file_of_a_pool_that_they_are_given(model_dir: ModelDir) -> None:
    config = EngineConfig(model_dir=model_dir("llama"), device="cpu", tensor_parallel=2)
    with pytest.raises(EngineConfigError, match="its pool_fd"):
        load_engine(config, pool_memory=memoryview(bytearray(1 << 20)))


@pytest.mark.parametrize("ranks", [0, 9])
def test_counts_of_ranks_that_make_no_sense_are_refused(ranks: int) -> None:
    with pytest.raises(EngineConfigError, match=f"tensor_parallel is {ranks}"):
        EngineConfig(model_dir=Path("m"), tensor_parallel=ranks)
