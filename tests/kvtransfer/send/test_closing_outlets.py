"""Outlets of devices that hang: neither the loop nor the end of a process waits for them."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.kvtransfer.device_pair import device_pair, is_given, wait_until
from tests.kvtransfer.two_drivers import Two, play
from twolane.kvtransfer.events import Committed
from twolane.kvtransfer.layouts.sources import Source
from twolane.kvtransfer.testing.memory import MemoryOutlet
from twolane.kvtransfer.transports.common.striped_outlet import Bundle


class Hanging(MemoryOutlet):
    """Moves pages, and stops when `is_free`."""

    is_free = False

    def close(self) -> None:
        raise AssertionError("nobody would ever come back from here")

    def close_soon(self) -> bool:
        return self.is_free


def hang(two: Two) -> list[Hanging]:
    """The outlets that are opened from now on."""
    made: list[Hanging] = []

    def outlet(sender_epoch: int, source: Source, address: str) -> Hanging:
        made.append(Hanging(two.fabric, sender_epoch, source, address, two.receiver.epoch))
        return made[-1]

    two.fabric.outlet = outlet  # type: ignore[assignment,method-assign]
    return made


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "has not stopped" in r.getMessage()]


def test_an_outlet_that_does_not_stop_holds_up_nothing_and_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(two: Two) -> None:
        outlets = hang(two)
        two.move("a")
        await asyncio.sleep(0.1)
        two.is_reachable = False
        two.links[0].break_now("gone")
        await asyncio.sleep(10.0)  # nothing waits for that peer: it is forgotten
        (line,) = said(caplog)
        assert "receiver 16 " in line
        two.is_reachable = True
        two.move("b")
        await asyncio.sleep(1.0)
        assert [type(event) for event in two.p_events].count(Committed) == 2
        assert len(outlets) == 2
        for outlet in outlets:
            outlet.is_free = True

    play(scene)
    assert len(said(caplog)) == 1


def test_a_driver_ends_though_an_outlet_does_not_and_says_whose_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(two: Two) -> None:
        hang(two)
        two.move("a")
        await asyncio.sleep(0.1)

    play(scene)
    (line,) = said(caplog)
    assert "receiver 16 " in line


@pytest.mark.parametrize("kind", ["cuda_ipc", "shm", "unix", "tcp"])
def test_an_outlet_whose_device_hangs_stops_when_the_device_goes_on(kind: str) -> None:
    with device_pair(kind) as pair:
        pair.grant(1, 1)
        pair.post(1, 1, [5], [1])
        assert pair.out.wait_for(1)[0].ok
        pair.p.stall()
        pair.grant(2, 2)
        pair.post(2, 2, [6], [2])
        wait_until(lambda: is_given(pair.p))
        assert not pair.outlet.close_soon()  # it returns, though the device stands still
        time.sleep(0.05)
        assert not pair.outlet.close_soon()
        assert pair.out.hears_nothing(0.0), "its page may still be read"
        pair.p.resume()
        until_s = time.monotonic() + 30.0
        while not pair.outlet.close_soon():
            assert time.monotonic() < until_s
            time.sleep(0.001)
        assert [p.post for p in pair.outlet.poll()] == [2]


def test_of_several_sockets_each_begins_to_stop_at_once() -> None:
    with device_pair("tcp", sockets=3) as pair:
        assert isinstance(pair.outlet, Bundle)
        pair.outlet.close_soon()
        until_s = time.monotonic() + 30.0
        for outlet in pair.outlet._outlets:
            while outlet._is_running:  # type: ignore[attr-defined]
                assert time.monotonic() < until_s
                time.sleep(0.001)
        assert pair.outlet.close_soon()
