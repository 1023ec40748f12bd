"""A rank that does not read is found silent, however long the step's message is."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engine.ranks import fake_member
from tests.own_time import own_time
from twolane.engine.config import EngineConfig
from twolane.engine.errors import RankLostError
from twolane.engine.ranks import group
from twolane.engine.ranks.start import start_ranks
from twolane.engine.step import Page, RowWork
from twolane.params import SamplingParams

FAKE = (sys.executable, str(Path(fake_member.__file__)))


def row(number: int, n_tokens: int) -> RowWork:
    """A penalty counts all of its tokens, so all are sent with each step: 8 bytes each."""
    params = SamplingParams(temperature=0.0, repetition_penalty=1.1)
    pages = [Page(0)] * (n_tokens // 16 + 1)
    return RowWork(number, [5] * n_tokens, n_tokens - 1, 1, pages, n_tokens, params, True)


@pytest.mark.parametrize("n_rows", [1, 64])
def test_a_rank_that_stops_is_lost_within_its_silence(n_rows: int) -> None:
    """64 decode rows (the default) of 32k tokens each: 16 MB."""
    config = EngineConfig(model_dir=Path("m"), tensor_parallel=2)
    ranks = start_ranks(config, silent_after_s=1.0, command=FAKE)
    os.kill(ranks.pids[1], signal.SIGSTOP)
    ended: list[Exception] = []

    def run() -> None:
        try:
            ranks.run([row(i, 32_000) for i in range(n_rows)])
        except Exception as error:  # noqa: BLE001
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(8.0)
    was_stuck = thread.is_alive()
    with suppress(ProcessLookupError):  # it was killed
        os.kill(ranks.pids[1], signal.SIGCONT)
    thread.join(20)
    ranks.close()
    assert not was_stuck, "waits for the rank without bound"
    assert isinstance(ended[0], RankLostError)


def test_closing_does_not_wait_for_a_rank_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group, "CLOSE_GRACE_S", 1.0)
    config = EngineConfig(model_dir=Path("m"), tensor_parallel=2)
    ranks = start_ranks(config, silent_after_s=60.0, command=FAKE)
    os.kill(ranks.pids[1], signal.SIGSTOP)
    sending = threading.Thread(
        target=ranks.submit, args=([row(i, 32_000) for i in range(64)],), daemon=True
    )
    sending.start()
    sending.join(2.0)
    assert sending.is_alive(), "its channel has room"
    with own_time() as took:
        ranks.close()
        assert took.s() < 10
    sending.join(10)
    assert not sending.is_alive()


def test_ranks_that_all_hang_are_closed_as_soon_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "CLOSE_GRACE_S", 2.0)
    config = EngineConfig(model_dir=Path("m"), tensor_parallel=6)
    ranks = start_ranks(config, silent_after_s=60.0, command=FAKE)
    pids = ranks.pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with own_time() as took:
        ranks.close()
        assert took.s() < 8, "six times two seconds, one after the other"
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
