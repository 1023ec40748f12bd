"""How busy an event loop says it is."""

from __future__ import annotations

import asyncio
import time

from twolane.rpc.measured_loop import MeasuredLoop


def spend(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_a_loop_is_idle_while_it_waits_and_not_while_it_works() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MeasuredLoop)
        waits_s: list[float] = []
        for _ in range(100):  # what others have of the core meanwhile is not counted
            began, idle_s = time.perf_counter(), loop.idle_s
            await asyncio.sleep(0.1)
            waits_s.append(loop.idle_s - idle_s)
            assert waits_s[-1] <= time.perf_counter() - began
            if waits_s[-1] > 0.09:
                break
        assert max(waits_s) > 0.09
        idle_s = loop.idle_s
        for _ in range(100):
            spend(0.0005)
            await asyncio.sleep(0)  # other callbacks are due
        assert loop.idle_s == idle_s

    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        runner.run(main())
