"""A drain that a hook asks an agent for, which gets no signal."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.deploy.agent.test_agent import agent, client, nobody_left, spec
from twolane.deploy.__main__ import main
from twolane.deploy.agent.agent import Agent
from twolane.deploy.agent.asked_drain import drain_below

__all__ = ["nobody_left"]


async def test_a_hook_returns_when_all_has_ended_and_nothing_starts_any_more(
    tmp_path: Path,
) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        await ours.start(spec())
        assert await asyncio.to_thread(drain_below, tmp_path, 30.0, poll_s=0.01) == []
        assert server.agent.is_over
        assert "its agent is ending" in (await ours.start(spec(worker_id="v"))).error


async def test_a_worker_that_does_not_end_is_killed_after_the_time_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.deploy.agent.asked_drain._MARGIN_S", 60.0)
    async with agent(tmp_path) as server, client(server) as ours:
        await ours.start(spec("stubborn"))
        assert await asyncio.to_thread(drain_below, tmp_path, 0.1, poll_s=0.01) == []
        assert server.agent.is_over


async def test_a_drain_that_fails_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [OSError("no space left"), ExceptionGroup("stops", [RuntimeError("a stop failed")])]
    stop_all = Agent.stop_all

    async def fails_twice(its: Agent, grace_s: float) -> None:
        if errors:
            raise errors.pop(0)
        await stop_all(its, grace_s)

    monkeypatch.setattr(Agent, "stop_all", fails_twice)
    async with agent(tmp_path) as server:
        assert await asyncio.to_thread(drain_below, tmp_path, 30.0, poll_s=0.01) == []
        assert server.agent.is_over
    assert "no space left" in caplog.text
    assert "a stop failed" in caplog.text


async def test_an_agent_one_of_whose_tasks_has_failed_leaves_none_running(tmp_path: Path) -> None:
    async def fails() -> None:
        raise KeyError("a fault of ours")

    manager = agent(tmp_path)
    server = await manager.__aenter__()
    assert server._running is not None
    assert server._draining is not None
    server._draining.cancel()
    server._draining = asyncio.create_task(fails())
    await asyncio.wait([server._draining])
    with pytest.raises(KeyError):
        await manager.__aexit__(None, None, None)
    await asyncio.wait([server._running], timeout=60.0)
    assert server._running.done()


async def test_what_an_earlier_agent_was_asked_does_not_count(tmp_path: Path) -> None:
    async with agent(tmp_path) as server:
        await asyncio.to_thread(drain_below, tmp_path, 1.0, poll_s=0.01)
    async with agent(tmp_path) as server, client(server) as ours:
        assert not (await ours.start(spec())).error
        assert not server.agent.is_over


def test_a_pod_without_an_agent_ends_at_once(tmp_path: Path) -> None:
    command = ["drain", "--state-dir", str(tmp_path), "--drain-s", "60"]
    assert CliRunner().invoke(main, command).exit_code == 0


@pytest.mark.parametrize("seconds", ["inf", "nan", "-1"])
def test_a_drain_without_an_end_is_refused(tmp_path: Path, seconds: str) -> None:
    command = ["drain", "--state-dir", str(tmp_path), "--drain-s", seconds]
    assert CliRunner().invoke(main, command).exit_code == 2


def test_an_agent_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twolane.deploy.agent.asked_drain._MARGIN_S", 0.0)
    folder = tmp_path / "c" / "gpu-0"
    folder.mkdir(parents=True)
    (folder / "heartbeat").touch()
    command = ["drain", "--state-dir", str(tmp_path), "--drain-s", "0.1"]
    ended = CliRunner().invoke(main, command)
    assert ended.exit_code == 1
    assert str(folder) in ended.output
