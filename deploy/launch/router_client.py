"""What the supervisor asks of a router. One that does not answer now is asked again later: nothing
that a router says ends the supervisor."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from twolane.deploy.process.handshake import Handle
from twolane.rpc.options import CHANNEL_OPTIONS
from twolane.rpc.secret import shown
from twolane.v1 import cluster_pb2, cluster_pb2_grpc

log = logging.getLogger(__name__)


class RouterClient:
    """An async context manager around a channel to each of the router's doors."""

    def __init__(self, router: Handle, secret: str, *, timeout_s: float = 2.0) -> None:
        ends = (router.endpoint, router.worker_endpoint)
        self._channels = [grpc.aio.insecure_channel(end, options=CHANNEL_OPTIONS) for end in ends]
        door, worker_door = self._channels
        self._health: Any = health_pb2_grpc.HealthStub(door)
        self._membership = cluster_pb2_grpc.MembershipServiceStub(worker_door)
        self._metadata = shown(secret)
        self._timeout_s = timeout_s

    async def is_serving(self) -> bool:
        try:
            request = health_pb2.HealthCheckRequest()
            answer = await self._health.Check(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            _not_now(error)
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def workers(
        self, hosts: Sequence[cluster_pb2.HostStatus] = ()
    ) -> list[cluster_pb2.WorkerStatus]:
        """The router's members, none while it does not answer; it learns what `hosts` are heard."""
        try:
            request = cluster_pb2.SuperviseRequest(hosts=hosts)
            answer = await self._membership.Supervise(
                request, timeout=self._timeout_s, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            _not_now(error)
            return []
        return list(answer.workers)

    async def report_gone(self, epoch: int, proof_class: str = "A") -> bool:
        """Hand over the proof that `epoch` is dead. False: not delivered, try again."""
        try:
            request = cluster_pb2.ReportGoneRequest(epoch=epoch, proof_class=proof_class)
            await self._membership.ReportGone(
                request, timeout=self._timeout_s, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            _not_now(error)
            return False
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for channel in self._channels:
            await channel.close()


def _not_now(error: grpc.aio.AioRpcError) -> None:
    """A router that dies in the middle of a call may answer with any status (INTERNAL, CANCELLED,
    UNKNOWN): it is restarted, so whatever the status says, the answer is: later."""
    log.warning("the router does not answer now: %s: %s", error.code().name, error.details())
