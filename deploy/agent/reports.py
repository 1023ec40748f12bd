"""Tells routers that an epoch of this host is proven dead, so that pages are freed."""

from __future__ import annotations

import asyncio
import logging

import grpc

from twolane.deploy.agent.ended import Ended
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.v1 import cluster_pb2, cluster_pb2_grpc

log = logging.getLogger(__name__)

_CALL_S = 2.0
_PAUSE_S = 1.0
_FOR_S = 600.0  # routers remember proofs for as long
_FINAL = frozenset({grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED})


class Reporter:
    """Keeps a channel to each router that it has had to tell something."""

    def __init__(self, host_name: str, credentials: Credentials) -> None:
        self._host_name = host_name
        self._credentials = credentials
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def report(self, ended: Ended) -> None:
        """Tell each of its routers, again until it has heard, for ten minutes at most."""
        async with asyncio.TaskGroup() as tasks:
            for router in ended.routers:
                tasks.create_task(self._tell(router, ended), name=f"report-{router}")

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def _tell(self, router: str, ended: Ended) -> None:
        if router not in self._channels:
            self._channels[router] = self._credentials.channel(router, Role.ROUTER)
        stub = cluster_pb2_grpc.MembershipServiceStub(self._channels[router])
        request = cluster_pb2.ReportGoneRequest(
            epoch=ended.epoch, host=self._host_name, proof_class=ended.proof_class
        )
        clock = asyncio.get_running_loop().time
        end = clock() + _FOR_S
        while clock() < end:
            try:
                await stub.ReportGone(
                    request, timeout=_CALL_S, metadata=self._credentials.metadata(router)
                )
                return
            except grpc.aio.AioRpcError as error:
                if error.code() in _FINAL:
                    log.error("router %s: %s", router, error.details())
                    return
            await asyncio.sleep(_PAUSE_S)
