"""Routers that are gone are forgotten, and what still runs at one goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from tests.twolane.test_lost_calls import REFUSED, Router, failure, run
from tests.twolane.test_resuming import N_TOKENS, two_routers
from twolane.aclient import AsyncClient
from twolane.calls.door import Door, Doors
from twolane.errors import UnavailableError
from twolane.security.target import Target
from twolane.v1 import inference_pb2

REQUEST = inference_pb2.GenerateRequest()


class Dead(Router):
    async def Cancel(self, request: Any, **how: Any) -> Any:
        raise failure(REFUSED.code(), REFUSED.details() or "")


def endpoints(doors: Doors) -> list[str]:
    return [door.target.endpoint for door in doors.all]


def test_a_lost_router_that_the_others_no_longer_announce_is_forgotten() -> None:
    async def cancel() -> None:
        client = AsyncClient("r0:1")
        client._doors.learn(["r0:1", "r1:1"])
        client._doors.learn(["r0:1", "r2:1"])
        assert not await client.cancel("x")
        assert endpoints(client._doors) == ["r0:1", "r2:1"]

    run(cancel(), (Router(), Dead(), Router()))


def test_a_lost_router_that_is_announced_or_that_the_user_has_named_is_kept() -> None:
    async def cancel() -> None:
        client = AsyncClient("r0:1,r1:1")
        client._doors.learn(["r0:1", "r2:1"])
        client._doors.learn([])
        with pytest.raises(UnavailableError):
            await client.cancel("x")
        assert endpoints(client._doors) == ["r0:1", "r1:1", "r2:1"]

    run(cancel(), (Router(), Dead(), Dead()))


def test_a_forgotten_router_does_not_count_among_those_that_an_answer_may_go_on_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def has_one_address(door: Door) -> bool:
        return False

    monkeypatch.setattr(Door, "has_others", has_one_address)

    async def ask() -> None:
        doors = Doors([Target("r0:1")])
        doors.learn(["r1:1"])
        doors.learn(["r2:1"])
        doors.note_lost(doors.all[1])
        assert not await doors.may_go_on()

    asyncio.run(ask())


async def test_an_answer_goes_on_at_a_router_that_is_forgotten_meanwhile() -> None:
    async with two_routers() as (_, one, other):
        doors = Doors([Target(one.address)])
        doors.learn([one.address, other.address])
        door = doors.all[1]
        call = door.inference.Generate(REQUEST)
        tokens = len((await anext(aiter(call))).tokens)
        doors.learn([one.address])
        doors.note_lost(door)
        assert endpoints(doors) == [one.address]
        async with asyncio.timeout(20):
            async for message in call:
                tokens += len(message.tokens)
            while not door.is_idle:
                await asyncio.sleep(0.01)
        assert tokens == N_TOKENS
        await doors.close()


async def test_closing_a_client_ends_answers_of_routers_that_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_routers() as (_, one, other):
        monkeypatch.setattr(other, "_tokens", _never)
        doors = Doors([Target(one.address)])
        doors.learn([one.address, other.address])
        door = doors.all[1]
        call = door.inference.Generate(REQUEST)
        await anext(aiter(call))
        doors.learn([one.address])
        doors.note_lost(door)
        await doors.close()
        async with asyncio.timeout(20):
            assert await call.code() is grpc.StatusCode.CANCELLED


async def _never(*request: object) -> Any:
    await asyncio.Event().wait()
    yield
