"""What the supervisor asks of a router. One that does not answer now is asked again later."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from twolane.rpc.options import CHANNEL_OPTIONS
from twolane.v1 import cluster_pb2, cluster_pb2_grpc

_NOT_NOW = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


class RouterClient:
    """An async context manager around one channel."""

    def __init__(self, endpoint: str, *, timeout_s: float = 2.0) -> None:
        self._channel = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        self._admin = cluster_pb2_grpc.AdminServiceStub(self._channel)
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)
        self._timeout_s = timeout_s

    async def is_serving(self) -> bool:
        try:
            request = health_pb2.HealthCheckRequest()
            answer = await self._health.Check(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            _must_be_not_now(error)
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def workers(self) -> list[cluster_pb2.WorkerStatus]:
        """The router's members; none while it does not answer."""
        try:
            request = cluster_pb2.GetStatusRequest()
            answer = await self._admin.GetStatus(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            _must_be_not_now(error)
            return []
        return list(answer.workers)

    async def report_gone(self, epoch: int) -> bool:
        """Hand over the proof that `epoch` is dead. False: not delivered, try again."""
        try:
            request = cluster_pb2.ReportGoneRequest(epoch=epoch)
            await self._admin.ReportGone(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            _must_be_not_now(error)
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
        await self._channel.close()


def _must_be_not_now(error: grpc.aio.AioRpcError) -> None:
    if error.code() not in _NOT_NOW:
        raise error
