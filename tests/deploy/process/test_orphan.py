"""When a process that an agent has started ends itself: in given time."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from twolane.deploy.errors import StartError
from twolane.deploy.process.orphan import HEARTBEAT, OrphanRule, end_as_orphan
from twolane.testing.virtual_time import VirtualTimeLoop, virtual_time_runner


def test_agents_heartbeat_alone_keeps_a_process() -> None:
    rule = OrphanRule(60, now=0)
    assert not any(rule.look(f"{at}", None, at) for at in range(0, 600, 50))


def test_router_alone_keeps_a_process() -> None:
    rule = OrphanRule(60, now=0)
    assert not any(rule.look("same", at - 1.0, at) for at in range(0, 600, 50))


def test_process_is_an_orphan_when_both_have_been_silent_for_long() -> None:
    rule = OrphanRule(60, now=0)
    assert not rule.look("1", None, 10)
    assert not rule.look("1", 25.0, 70)
    assert not rule.look("1", 25.0, 85)
    assert rule.look("1", 25.0, 86)


def test_heartbeat_of_an_agent_that_is_gone_counts_once() -> None:
    rule = OrphanRule(60, now=0)
    assert not rule.look("1", None, 50)
    assert not rule.look("1", None, 110)
    assert rule.look("1", None, 111)


def test_orphan_ends_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / HEARTBEAT).write_text("1")
    with virtual_time_runner() as runner, pytest.raises(StartError, match="silent for 60 s"):
        runner.run(end_as_orphan(str(tmp_path), 60.0, lambda: None))


def test_pause_of_the_process_itself_is_no_silence(tmp_path: Path) -> None:
    heartbeat = tmp_path / HEARTBEAT
    heartbeat.write_text("1")

    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        ending = asyncio.create_task(end_as_orphan(str(tmp_path), 60.0, lambda: None))
        await asyncio.sleep(30)
        loop._jumping.now_s += 100  # the machine is paused, and the agent with it
        await asyncio.sleep(1)
        assert not ending.done()
        heartbeat.write_text("2")
        await asyncio.sleep(50)
        assert not ending.done()
        with pytest.raises(StartError, match="silent for 60 s"):
            await ending
        return loop.time()

    with virtual_time_runner() as runner:
        assert 190 <= runner.run(main()) < 200, "a minute after the last sign of life"


def test_heartbeat_that_cannot_be_read_ends_no_process_that_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_text", fails)
    (tmp_path / HEARTBEAT).touch()

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(end_as_orphan(str(tmp_path), 60.0, clock), 600)
        with pytest.raises(StartError, match="silent for 60 s"):
            await end_as_orphan(str(tmp_path), 60.0, lambda: None)

    with virtual_time_runner() as runner:
        runner.run(main())


def test_process_without_an_agent_is_no_orphan() -> None:
    with virtual_time_runner() as runner:
        runner.run(end_as_orphan("", 60.0, lambda: None))
