"""A law of ours that breaks ends the worker, wherever that is found: its books are wrong then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.worker.conftest import Play, WorkerCluster
from twolane.params import SamplingParams
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.worker import Worker

PARAMS = SamplingParams(max_tokens=20, seed=7)
LAW = "page 7 was released more often than it was taken"


def broken(*args: Any, **named: Any) -> Any:
    raise AssertionError(LAW)


def at_wake_of_sender(p: Worker, d: Worker) -> str:
    assert p.roles.prefill is not None
    p.roles.prefill.sender.poll = broken  # type: ignore[method-assign]
    return "p"


def at_wake_of_receiver(p: Worker, d: Worker) -> str:
    assert d.roles.decode is not None
    landings = d._peers._in._landings  # type: ignore[union-attr]
    landings["memory"].poll = broken  # type: ignore[method-assign]
    return "d"


def at_message_of_peer(p: Worker, d: Worker) -> str:
    assert d.roles.decode is not None
    d.roles.decode.receiver.on_message = broken  # type: ignore[method-assign]
    return "d"


def at_message_of_receiver(p: Worker, d: Worker) -> str:
    assert p.roles.prefill is not None
    p.roles.prefill.sender.on_message = broken  # type: ignore[method-assign]
    return "p"


def at_message_of_router(p: Worker, d: Worker) -> str:
    d._commands.handle = broken  # type: ignore[method-assign]
    return "d"


@contextmanager
def group_of_broken_laws() -> Iterator[None]:
    """What ends the workers ends the test's own tasks, too."""
    with pytest.raises(BaseExceptionGroup) as caught:
        yield
    others = caught.value.split(lambda error: LAW in str(error))[1]
    assert others is None, others


@pytest.mark.parametrize(
    "inject",
    [
        at_wake_of_sender,
        at_wake_of_receiver,
        at_message_of_peer,
        at_message_of_receiver,
        at_message_of_router,
    ],
)
def test_broken_law_ends_its_worker(play: Play, inject: Callable[[Worker, Worker], str]) -> None:
    lives: list[asyncio.Task[None]] = []

    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        await asyncio.sleep(0.01)
        lives.append(town.lives[inject(p, d)])
        town.router.assign(AttemptId("r", 1), range(100), prefill=p, decode=d, params=PARAMS)
        await asyncio.sleep(0.5)
        pytest.fail("half a second later it lives on")

    with group_of_broken_laws():
        play(scene)
    (life,) = lives
    assert not life.cancelled(), "it ended with something else that broke"
    assert life.exception() is not None
