import asyncio
import random
import secrets
import time

import pytest

from twolane.rpc.link import LinkBrokenError
from twolane.testing.links import MemoryLink, link_pair
from twolane.testing.virtual_time import DeadlockError, virtual_time_runner


def test_an_hour_passes_at_once_and_timers_keep_their_order() -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        seen.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(sleeper("late", 3600.0))
            group.create_task(sleeper("soon", 0.5))

    spent_s = time.process_time()
    with virtual_time_runner() as runner:
        runner.run(main())
    assert seen == [("soon", 0.5), ("late", 3600.0)]
    assert time.process_time() - spent_s < 5


def test_waiting_for_nothing_is_a_deadlock_not_a_hang() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with virtual_time_runner() as runner, pytest.raises(DeadlockError):
        runner.run(main())


def test_a_link_delivers_in_order_after_its_latency() -> None:
    async def main() -> None:
        here, there = make_pair(0.25)
        for number in range(300):
            here.send(number)
        assert [await there.receive() for _ in range(300)] == list(range(300))
        assert asyncio.get_running_loop().time() == 0.25

    with virtual_time_runner() as runner:
        runner.run(main())


def test_a_broken_link_loses_what_was_on_its_way_and_tells_both_ends() -> None:
    async def main() -> None:
        here, there = make_pair(0.25)
        here.send(1)
        there.break_now("reset")
        with pytest.raises(LinkBrokenError, match="reset"):
            await there.receive()
        with pytest.raises(LinkBrokenError, match="reset"):
            await here.receive()
        with pytest.raises(LinkBrokenError):
            here.send(2)

    with virtual_time_runner() as runner:
        runner.run(main())


def make_pair(latency_s: float) -> tuple[MemoryLink[int, int], MemoryLink[int, int]]:
    return link_pair(latency_s)


def test_what_is_drawn_follows_from_the_seed_alone() -> None:
    def drawn(seed: int) -> tuple[str, int, float]:
        with virtual_time_runner(seed):
            return secrets.token_hex(16), secrets.randbits(63), random.random()

    before = random.getstate()
    assert drawn(1) == drawn(1)
    assert not {*drawn(1)} & {*drawn(2)}
    assert random.getstate() == before
    assert secrets.token_hex(16) != drawn(1)[0]
