"""An agent without its network interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.deploy.agent.test_agent import DUMMY, FIRST, nobody_left, spec
from tests.processes import is_alive
from twolane.deploy.agent.agent import Agent, Live
from twolane.deploy.agent.config import AgentConfig
from twolane.deploy.agent.ended import Ended
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.specs import ProcessSpec
from twolane.security.credentials import Credentials

__all__ = ["nobody_left"]

PROOF = ("w", "killed by SIGKILL", "A")


async def no_report(ended: Ended) -> None:
    pass


@asynccontextmanager
async def running(tmp_path: Path) -> AsyncIterator[Agent]:
    config = AgentConfig(
        host_name="node-a",
        state_dir=tmp_path / "state",
        log_dir=tmp_path / "logs",
        credentials=Credentials(),
    )
    agent = Agent(config, no_report, command=DUMMY)
    run = asyncio.create_task(agent.run())
    await agent.ready.wait()
    yield agent
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled()


def when_up(agent: Agent, act: Callable[[Handle], None]) -> None:
    """`act` is called when the next process has come up, and its start has not gone on yet."""
    start = agent._launcher.start

    async def start_and_act(spec: ProcessSpec) -> Handle:
        handle = await start(spec)
        act(handle)
        return handle

    agent._launcher.start = start_and_act  # type: ignore[method-assign]


async def test_fence_of_a_start_that_has_just_come_up_ends_its_process(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        wanted = spec()
        fencing: list[asyncio.Task[Ended]] = []

        def fence(handle: Handle) -> None:
            fencing.append(asyncio.create_task(agent.fence(None, "w", epoch=wanted.epoch)))

        when_up(agent, fence)
        live: Live = await agent.start(FIRST, wanted)
        ended = await fencing[0]
        assert (ended.name, ended.how, ended.proof_class) == PROOF
        assert not is_alive(live.handle.pid)
        assert not agent._live


async def test_start_that_comes_up_as_its_time_is_over_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        up: list[Handle] = []
        outer: list[asyncio.Task[Live]] = []

        def cancel(handle: Handle) -> None:
            up.append(handle)
            asyncio.get_running_loop().call_soon(outer[0].cancel)

        when_up(agent, cancel)
        outer.append(asyncio.create_task(agent.start(FIRST, spec())))
        with pytest.raises(asyncio.CancelledError):
            await outer[0]
        assert not is_alive(up[0].pid)
