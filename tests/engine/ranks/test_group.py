"""A group as its driver sees it: lock-step, deaths, ends. Real processes around fake engines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import twolane.engine.cuda.mapped
from tests.own_time import own_time
from tests.processes import is_alive
from tests.until import wait_until
from twolane.engine.config import EngineConfig
from twolane.engine.cuda.driver import CudaError
from twolane.engine.errors import CheckpointError, RankLostError
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.engine.ranks.group import RankGroup, _GroupStep
from twolane.engine.ranks.start import start_ranks
from twolane.engine.step import DevicePool, Engine, Page, RowWork
from twolane.params import SamplingParams

FAKE = (sys.executable, str(Path(__file__).with_name("fake_member.py")))
ROW = RowWork(7, [5, 6, 7], 0, 3, [Page(2)], 3, SamplingParams(temperature=0.0), True)


def start(fault: str = "", *, ranks: int = 2, silent_after_s: float = 60.0) -> RankGroup:
    config = EngineConfig(model_dir=Path("m"), model_name=fault, tensor_parallel=ranks)
    return start_ranks(config, silent_after_s=silent_after_s, command=FAKE)


@contextmanager
def group(fault: str = "", *, ranks: int = 2, silent_after_s: float = 60.0) -> Iterator[RankGroup]:
    made = start(fault, ranks=ranks, silent_after_s=silent_after_s)
    try:
        yield made
    finally:
        made.close()
        assert not alive(made.pids)
        assert not made.folder.exists()


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid)]


def gone_within(pids: list[int], seconds: float) -> bool:
    """Seconds of own time."""
    with own_time() as took:
        while took.s() < seconds:
            if not any(map(is_alive, pids)):
                return True
            time.sleep(0.02)
    return False


def test_a_group_answers_what_one_engine_answers() -> None:
    alone = FakeEngine(FakeEngineConfig(n_pages=8))
    with group(ranks=4) as ranks:
        assert isinstance(ranks, Engine)
        whole = replace(alone.spec, page_bytes=4 * alone.spec.page_bytes)
        assert (ranks.spec, ranks.steps_ahead) == (whole, 0)
        for _ in range(3):
            assert ranks.run([ROW]) == alone.run([ROW])
        assert ranks.run([]) == []


def test_a_step_is_over_when_every_rank_says_so() -> None:
    """Its result is the proof that pages may be moved, those of the slowest rank among them."""
    with group(ranks=3) as ranks, ThreadPoolExecutor(1) as threads:
        os.kill(ranks.pids[2], signal.SIGSTOP)
        result = threads.submit(ranks.submit([ROW]).result)
        with pytest.raises(TimeoutError):
            result.result(0.3)
        os.kill(ranks.pids[2], signal.SIGCONT)
        assert result.result(60) == FakeEngine(FakeEngineConfig(n_pages=8)).run([ROW])


class Driver:
    """Stands in for the few calls of CUDA's that map memory of another process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, out_of_reach: bytes = b"") -> None:
        self.mapped: dict[int, bytes] = {}
        self._out_of_reach = out_of_reach
        doubles = {
            "Context": lambda device: self,
            "open_memory": self.open,
            "close_memory": self.shut,
        }
        for name, double in doubles.items():
            monkeypatch.setattr(twolane.engine.cuda.mapped, name, double)

    def enter(self) -> None:
        """Of a context."""

    def open(self, exported: bytes) -> int:
        if exported == self._out_of_reach:
            raise CudaError("no way to that card")
        address = 1000 * (len(self.mapped) + 1)
        self.mapped[address] = exported
        return address

    def shut(self, exported: bytes, address: int) -> None:
        assert self.mapped.pop(address) == exported


def test_pools_of_ranks_on_cards_are_mapped_in_their_order_until_the_group_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver(monkeypatch)
    with group("has a card", ranks=3) as ranks:
        exports = (b"0", b"1", b"2")
        part_bytes = ranks.spec.n_pages * ranks.spec.page_bytes // 3
        assert ranks.device_pool == DevicePool(0, (1000, 2000, 3000), part_bytes, exports)
        assert tuple(driver.mapped.values()) == exports
        assert ranks.pool.shape == (0, ranks.spec.page_bytes)
    assert not driver.mapped
    assert ranks.device_pool is None


def test_ranks_whose_cards_are_out_of_reach_serve_without_their_pools(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(monkeypatch, out_of_reach=b"1")
    with group("has a card") as ranks:
        assert ranks.device_pool is None
        assert not driver.mapped, "what was mapped before is given back"
        assert ranks.run([ROW])
    assert "cannot be transferred: no way to that card" in caplog.text


def test_steps_may_be_submitted_before_results_are_taken() -> None:
    alone = FakeEngine(FakeEngineConfig(n_pages=8))
    with group() as ranks:
        steps = [ranks.submit([ROW]) for _ in range(5)]
        assert [step.result() for step in reversed(steps)] == [alone.run([ROW])] * 5


def test_a_row_that_cannot_be_computed_fails_alone_on_every_rank() -> None:
    alone = FakeEngine(FakeEngineConfig(n_pages=8))
    strange = [
        RowWork(1, [2**40], 0, 1, [Page(3)], 1, SamplingParams(), True),
        RowWork(3, [-5], 0, 1, [], 1, SamplingParams(logit_bias={2**31 - 1: 1.0}), True),
    ]
    with group() as ranks:
        results = ranks.run([*strange, ROW])
        assert [bool(result.error) for result in results] == [True, True, False]
        assert results == alone.run([*strange, ROW])
        assert ranks.run([ROW]) == alone.run([ROW])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("dies in step", "rank {} exited with 3"),
        ("raises in step", r"rank {} failed \(RuntimeError: out of luck\)"),
    ],
)
def test_a_rank_that_breaks_in_a_step_ends_it_and_all_others(
    fault: str, complaint: str, rank: int
) -> None:
    with group(f"{fault}:{rank}") as ranks, own_time() as took:
        with pytest.raises(RankLostError, match=complaint.format(rank)) as error:
            ranks.run([ROW])
        assert error.value.rank == rank
        assert gone_within(ranks.pids, 3)
        with pytest.raises(RankLostError):
            ranks.submit([ROW])
        assert took.s() < 5, "not because they are silent"


def test_a_rank_killed_while_another_waits_ends_the_step_within_moments() -> None:
    with group("hangs in step:0") as ranks:
        step = ranks.submit([ROW])
        with own_time() as took:
            os.kill(ranks.pids[1], signal.SIGKILL)
            with pytest.raises(RankLostError, match="rank 1 was killed by SIGKILL"):
                step.result()
        assert took.s() < 3, "not because it is silent"


def test_a_rank_killed_while_nothing_runs_is_told_at_once() -> None:
    heard: list[Exception] = []
    with group() as ranks:
        ranks.on_lost(heard.append)
        assert not heard
        os.kill(ranks.pids[0], signal.SIGKILL)
        assert gone_within(ranks.pids, 3)
        ranks.on_lost(heard.append)
    assert [str(error).split(";")[0] for error in heard] == ["rank 0 was killed by SIGKILL"] * 2


def test_a_rank_that_is_silent_for_too_long_is_lost() -> None:
    with group("hangs in step:1", silent_after_s=0.5) as ranks:
        step = ranks.submit([ROW])
        assert isinstance(step, _GroupStep)
        wait_until(lambda: 0 in step.step.digests, "rank 0 answers, however busy this machine is")
        with pytest.raises(RankLostError, match=r"rank 1 has not answered for 0\.5 s"):
            step.result()


def test_ranks_that_sample_different_tokens_are_found_out() -> None:
    with (
        group("samples otherwise:1") as ranks,
        pytest.raises(RankLostError, match="rank 1 disagrees with rank 0 about step 1"),
    ):
        ranks.run([ROW])


def test_why_a_rank_could_not_load_is_told_in_its_own_words() -> None:
    before = set(psutil.Process().children())  # of tests that ran in this process
    with pytest.raises(CheckpointError, match="tensor x is missing"):
        start("cannot load:1")
    with pytest.raises(RankLostError, match="rank 0 exited with 4"):
        start("dies at load:0")
    with pytest.raises(RankLostError, match="rank 1 loaded another engine"):
        start("makes another:1")
    assert set(psutil.Process().children()) <= before


def test_ranks_end_with_the_process_that_started_them() -> None:
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import test_group as t; "
        "g = t.start('hangs in step:0'); g.submit([t.ROW]); print(*g.pids, flush=True); "
        "time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(alive(pids)) == 2
        driver.kill()
    assert gone_within(pids, 3)


def test_a_closed_group_has_no_process_and_may_be_closed_again() -> None:
    ranks = start()
    ranks.close()
    assert not alive(ranks.pids)
    ranks.close()
