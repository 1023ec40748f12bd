"""Acts wait for a controller, and its results find who waits."""

from __future__ import annotations

import asyncio

import pytest

from twolane.errors import OverloadedError, UnavailableError
from twolane.router.operators.controller_mail import MOST_WAITING, ControllerMail
from twolane.v1 import acts_pb2

KILL = acts_pb2.ControllerAct(kill=acts_pb2.KillWorkerRequest(worker_id="d0"))


async def test_an_act_is_named_until_its_result_has_come() -> None:
    mail = ControllerMail()
    mail.note("c1", 1, 0.0)
    asking = asyncio.create_task(mail.ask(KILL, 60.0, 0.0))
    await asyncio.sleep(0)
    (act,) = mail.acts()
    assert mail.acts() == [act]
    unknown = acts_pb2.ControllerActResult(number=act.number + 1)
    mail.take_in([unknown])
    mail.take_in([acts_pb2.ControllerActResult(number=act.number, error="x")] * 2)
    assert (await asking).error == "x"
    assert mail.acts() == []


async def test_without_a_controller_nothing_waits_and_nobody_waits_for_ever() -> None:
    mail = ControllerMail()
    with pytest.raises(UnavailableError, match="no controller"):
        await mail.ask(KILL, 60.0, 0.0)
    mail.note("c1", 1, 0.0)
    with pytest.raises(UnavailableError, match="may still be done"):
        await mail.ask(KILL, 0.001, 0.0)
    assert mail.acts() == []


async def test_more_than_so_many_acts_are_refused() -> None:
    mail = ControllerMail()
    mail.note("c1", 1, 0.0)
    asking = [asyncio.create_task(mail.ask(KILL, 60.0, 0.0)) for _ in range(MOST_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await mail.ask(KILL, 60.0, 0.0)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


def test_two_controllers_are_both_shown_until_one_is_silent() -> None:
    mail = ControllerMail()
    mail.note("c1", 1, 0.0)
    mail.note("c2", 2, 4.0)
    assert [its.controller_id for its in mail.controllers(4.5)] == ["c1", "c2"]
    assert [its.controller_id for its in mail.controllers(6.0)] == ["c2"]
