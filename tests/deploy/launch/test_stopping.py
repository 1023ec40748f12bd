"""Stopping a cluster that another controller takes over meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from twolane.deploy.errors import DeposedError
from twolane.deploy.launch.stopping import stop_in_order
from twolane.deploy.process.handshake import Handle


class _TakenOver:
    async def stop(self, handle: Handle, grace_s: float) -> None:
        raise DeposedError(f"{handle.name}: another controller has it")


async def test_a_launcher_that_is_deposed_while_it_stops_says_so() -> None:
    groups = [[Handle("router-0", 0, "", "", 7)], [Handle("w", 1, "", "", 8)]]
    with pytest.raises(DeposedError, match="router-0: another controller has it"):
        await stop_in_order(
            cast(Any, _TakenOver()),
            groups,
            grace_s=1.0,
            margin_s=1.0,
            hurry=asyncio.Event(),
            tell=lambda event: None,
        )
