"""Requests that run at once at the HTTP door, by tenant."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from twolane.router.doors.http.concurrency_limit import FEW_OF, ConcurrencyLimit
from twolane.router.testing.client import client_of

MOST = 2 * FEW_OF  # two are few


class Door:
    """An application whose requests run until they are let go."""

    def __init__(self) -> None:
        self.limit = ConcurrencyLimit(self._serve, MOST, 1.0)
        self.released = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.released.wait()

    async def status_of(self, tenant: str) -> int:
        """503, or 0: it runs."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request"}

        scope = {"type": "http", "headers": [], "state": {"identity": client_of(tenant)}}
        self.tasks.append(asyncio.create_task(self.limit(scope, receive, send)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return sent[0]["status"] if sent else 0


async def test_tenant_that_fills_the_door_does_not_shut_out_one_that_has_few_requests() -> None:
    door = Door()
    assert [await door.status_of("many") for _ in range(MOST + 1)] == [0] * MOST + [503]
    assert [await door.status_of("few") for _ in range(3)] == [0, 0, 503]
    door.released.set()
    await asyncio.gather(*door.tasks)
    assert await door.status_of("many") == 0


async def test_all_tenants_together_have_twice_as_many_at_most() -> None:
    door = Door()
    for n in range(2 * MOST):
        assert await door.status_of(f"tenant {n}") == 0
    assert await door.status_of("one more") == 503
    door.released.set()
    await asyncio.gather(*door.tasks)
    assert await door.status_of("one more") == 0
