"""Reports to routers that an epoch of this host is proven dead, so that pages can be freed."""

from __future__ import annotations

import asyncio
import logging

import grpc

from twolane.deploy.agent.ended import Ended
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.security.tls import TlsFilesError
from twolane.v1 import cluster_pb2, cluster_pb2_grpc

log = logging.getLogger(__name__)

_CALL_S = 2.0
_PAUSE_S = 1.0
_FOR_S = 600.0  # as long as routers remember proofs
_FINAL = frozenset({grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED})


class Reporter:
    """Reports the deaths on one host."""

    def __init__(self, host_name: str, credentials: Credentials) -> None:
        self._host_name = host_name
        self._credentials = credentials
        self._under_way: set[tuple[int, str]] = set()  # the epoch, and the router to be told

    async def report(self, ended: Ended) -> None:
        """Report a death to each of its routers, and retry for at most ten minutes. A router that
        another call still tries to tell of it is left to that call."""
        async with asyncio.TaskGroup() as tasks:
            for router in ended.routers:
                tasks.create_task(self._tell_once(router, ended), name=f"report-{router}")

    async def _tell_once(self, router: str, ended: Ended) -> None:
        key = ended.epoch, router
        if key in self._under_way:
            return
        self._under_way.add(key)
        try:
            await self._tell(router, ended)
        finally:
            self._under_way.discard(key)

    async def _tell(self, router: str, ended: Ended) -> None:
        request = cluster_pb2.ReportGoneRequest(
            epoch=ended.epoch, host=self._host_name, proof_class=ended.proof_class
        )
        clock = asyncio.get_running_loop().time
        end = clock() + _FOR_S
        while clock() < end:
            try:
                async with self._credentials.channel(router, Role.ROUTER) as channel:
                    stub = cluster_pb2_grpc.MembershipServiceStub(channel)
                    metadata = self._credentials.metadata(router)
                    await stub.ReportGone(request, timeout=_CALL_S, metadata=metadata)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() in _FINAL:
                    log.error("router %s: %s", router, error.details())
                    return
            except TlsFilesError as error:  # they are being replaced, or no descriptor is free
                log.error("router %s: %s", router, error)
            await asyncio.sleep(_PAUSE_S)
