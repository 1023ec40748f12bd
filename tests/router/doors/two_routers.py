"""Two routers that know each other, each with workers of its own, and an operator at the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from twolane.router.config import RouterConfig, ServerConfig
from twolane.router.doors import peer_calls
from twolane.router.doors.server import RouterServer
from twolane.router.testing.served import serve_cluster
from twolane.v1 import admin_pb2_grpc, worker_pb2

CONFIG = ServerConfig(stop_grace_s=0.2, metrics_port=None, http=None)
HEARD_S = 3600.0  # after less, routers and controllers count as lost: a busy machine may take long


@dataclass
class Two:
    """`admin` is the operators' service of the `first`."""

    first: RouterServer
    second: RouterServer
    admin: Any

    def introduce(self, *more: worker_pb2.RouterAddress) -> None:
        """Each hears of the other, and the first of `more`, for good."""
        at = asyncio.get_running_loop().time() + HEARD_S
        self.first.router.known.hear([self.second.router.address, *more], at)
        self.second.router.known.hear([self.first.router.address], at)

    def note_controller(self) -> None:
        """Both routers take a controller for one that calls them, for good."""
        at = asyncio.get_running_loop().time() + HEARD_S
        for server in (self.first, self.second):
            server.router.operations.controllers.note("c", 1, at)


@asynccontextmanager
async def two_routers(folder: Path, *, within_s: float = 60.0) -> AsyncIterator[Two]:
    """Each waits for an answer of the other for `within_s`."""
    config = replace(CONFIG, admin_socket=str(folder / "admin.sock"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(peer_calls, "ASK_S", within_s)
        patched.setattr(peer_calls, "LOOK_S", within_s)
        async with _both(config) as two:
            yield two


@asynccontextmanager
async def _both(config: ServerConfig) -> AsyncIterator[Two]:
    async with (
        serve_cluster("p0", "d0", server_config=config) as (first, _),
        serve_cluster(
            "p1", "d1", config=RouterConfig(router_id="router-1"), server_config=CONFIG
        ) as (second, _),
        grpc.aio.insecure_channel(first.admin_address) as channel,
    ):
        two = Two(first, second, admin_pb2_grpc.AdminServiceStub(channel))
        two.introduce()
        yield two
