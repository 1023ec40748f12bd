"""Receivers that pages cannot go to now: what waits for them fails at once, and they are tried
again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kvtransfer.two_drivers import D_EPOCH, Two, play
from twolane.kvtransfer.events import Committed, Failed, Released, Unplaced
from twolane.kvtransfer.testing.memory import MemoryOutlet
from twolane.rpc.link import LinkBrokenError
from twolane.v1 import transfer_pb2


def test_transport_that_could_not_be_opened_once_is_opened_a_moment_later() -> None:
    async def scene(two: Two) -> None:
        two.broken = {"memory"}
        first = two.move("a", 1)
        await asyncio.sleep(0.02)
        second = two.move("b", 1)
        await asyncio.sleep(0.02)
        failures = [event for event in two.p_events if isinstance(event, Failed)]
        why = "memory: memory is broken"
        assert failures == [Failed(first, why), Failed(second, why)], "at once"
        two.broken.clear()
        for i in range(20):  # requests keep coming: the pair is never idle
            two.move(f"c{i}", 1)
            await asyncio.sleep(0.05)
        committed = [event for event in two.p_events if isinstance(event, Committed)]
        assert len(committed) >= 17, "all but those of the first tenth of a second"

    play(scene)


def test_pauses_grow_while_a_transport_cannot_be_opened_and_no_transfer_waits_for_it() -> None:
    async def scene(two: Two) -> None:
        two.broken = {"memory"}
        for i in range(200):
            key = two.move(f"r{i}", 1)
            await asyncio.sleep(0.05)
            assert two.p_events[-1] == Released(key)
        assert 10 <= two.n_dials <= 20, "in ten seconds"
        await asyncio.sleep(10.0)
        n_dials = two.n_dials
        await asyncio.sleep(10.0)
        assert two.n_dials == n_dials, "nobody asks for it any more"

    play(scene)


def test_better_transport_is_tried_again_when_nothing_is_under_way() -> None:
    async def scene(two: Two) -> None:
        two.broken = {"shm"}
        two.move("a")
        await asyncio.sleep(1.0)
        two.broken.clear()
        for i in range(150):
            two.move(f"b{i}", 1)
            await asyncio.sleep(0.5)
            assert [how.transport for how in two.p_driver.transports] in (["tcp"], ["shm"], [])
        (how,) = two.p_driver.transports
        assert (how.transport, how.instead_of) == ("shm", "")
        assert len([e for e in two.p_events if isinstance(e, Committed)]) == 151

    play(scene, transports=("shm", "tcp"))


def test_link_that_breaks_while_pages_travel_by_the_second_best_comes_back_with_the_same() -> None:
    async def scene(two: Two) -> None:
        two.broken = {"shm"}
        two.move("a")
        await asyncio.sleep(1.0)
        two.broken.clear()
        await asyncio.sleep(58.0)  # the better one may be tried again soon
        two.move("b")
        await asyncio.sleep(0.0015)
        two.links[-1].break_now("cut")
        await asyncio.sleep(1.0)
        assert [how.transport for how in two.d_driver.transports] == ["tcp"]
        assert len([e for e in two.p_events if isinstance(e, Committed)]) == 2

    play(scene, transports=("shm", "tcp"))


@pytest.mark.parametrize("rows_wait", [True, False])
def test_receiver_is_dialled_again_while_rows_wait_for_their_turn(rows_wait: bool) -> None:
    async def scene(two: Two) -> None:
        two.is_reachable = False
        two.rows_wait = rows_wait
        two.p_driver.connect(D_EPOCH, "there")
        await asyncio.sleep(0.05)
        two.is_reachable = True
        await asyncio.sleep(2.0)
        assert bool(two.p_driver.transports) is rows_wait
        assert two.n_dials == 1 + rows_wait

    play(scene)


def test_farewell_to_a_receiver_that_was_never_reached_keeps_nothing_open() -> None:
    async def scene(two: Two) -> None:
        two.is_reachable = False
        key = two.move("r")
        await asyncio.sleep(0.5)
        two.sender.abandon(key, "cancelled", asyncio.get_running_loop().time())
        assert two.sender.is_idle(D_EPOCH), "it has not heard of the row"

    play(scene)


def test_link_that_says_no_hello_is_closed_within_seconds() -> None:
    async def scene(two: Two) -> None:
        link = await two.dial("there")
        async with asyncio.timeout(7.0):
            with pytest.raises(LinkBrokenError):
                await link.receive()

    play(scene)


def test_receiver_that_says_no_hello_is_dialled_again() -> None:
    async def scene(two: Two) -> None:
        two.is_mute = True
        two.rows_wait = True
        two.p_driver.connect(D_EPOCH, "there")
        await asyncio.sleep(1.0)
        two.is_mute = False
        await asyncio.sleep(6.0)
        two.move("r")
        await asyncio.sleep(0.1)
        assert [type(event) for event in two.p_events] == [Committed, Released]
        assert two.n_dials == 2

    play(scene)


def test_hello_to_a_former_incarnation_does_not_cut_the_link_to_this_one() -> None:
    """It was restarted at the same endpoint, and somebody still waits for the one before."""

    async def scene(two: Two) -> None:
        two.move("a", 1)
        await asyncio.sleep(0.1)
        two.rows_wait = True
        two.p_driver.connect(D_EPOCH - 1, "d")
        for _ in range(100):
            await asyncio.sleep(0.01)
            assert two.p_driver.transports, "the link to this one is open all the time"
        assert len(two.links) > 3, "the former one was dialled again and again"
        two.move("b", 1)
        await asyncio.sleep(0.5)
        assert sum(isinstance(event, Committed) for event in two.p_events) == 2
        two.rows_wait = False

    play(scene)


def test_link_that_is_replaced_is_closed() -> None:
    """Else its messages would be heard, and answered on another, or on none once that is gone."""

    async def scene(two: Two) -> None:
        two.move("a", 1)
        await asyncio.sleep(0.1)
        first = two.links[0]
        second = await two.dial("d")
        second.send(transfer_pb2.ConnectRequest(hello=two.hello))
        await second.receive()
        with pytest.raises(LinkBrokenError):
            await first.receive()
        second.close()
        await asyncio.sleep(1.0)
        two.move("b", 1)
        await asyncio.sleep(0.5)
        assert sum(isinstance(event, Committed) for event in two.p_events) == 2

    play(scene)


class StuckOutlet:
    """Nothing moves until its outlet is resumed, and it gives no send back before that."""

    def __init__(self, outlet: MemoryOutlet) -> None:
        self.outlet = outlet
        outlet.stall()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.outlet, name)

    def cancel(self, generation: int) -> None:
        """As behind a device that hangs."""


def test_receiver_that_is_gone_is_not_dialled_for_a_send_that_its_transport_keeps() -> None:
    async def scene(two: Two) -> None:
        stuck: list[StuckOutlet] = []

        def wrap(outlet: MemoryOutlet) -> StuckOutlet:
            stuck.append(StuckOutlet(outlet))
            return stuck[-1]

        two.wrap = wrap
        key = two.move("a")
        await asyncio.sleep(1.0)
        two.is_reachable = False
        two.links[-1].break_now("its host is gone")
        await asyncio.sleep(30.0)
        assert two.p_events[-1] == Unplaced(key, "stuck")
        for _ in range(2):
            assert not two.sender.is_idle(D_EPOCH), "its pages are still being read"
            n_dials = two.n_dials
            await asyncio.sleep(300.0)
            assert two.n_dials == n_dials
            two.sender.abandon(key, "cancelled", asyncio.get_running_loop().time())
            await asyncio.sleep(30.0)
        two.is_reachable = True
        stuck[-1].outlet.resume()
        await asyncio.sleep(10.0)
        assert two.sender.is_idle(D_EPOCH)
        two.wrap = lambda outlet: outlet
        two.move("b")
        await asyncio.sleep(1.0)
        assert [e for e in two.p_events if isinstance(e, Committed)], "it is asked for again"

    play(scene)
