"""gRPC's standard health and reflection services, with our call bounds and our parsing.

The generated handlers answer malformed bytes with UNKNOWN, and log a traceback.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from twolane.rpc.call_gate import CallGate, Context
from twolane.rpc.handlers import parse, unary, unary_stream

_pb2: Any = health_pb2  # the stubs do not know List yet
_UNKNOWN, _SERVING, _NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)


class Health:
    """The health service: a status for each of our services, and "" for all of them. Nothing here
    waits for a watcher, of which some do not read (the library's servicer waits for each)."""

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {"": _SERVING}
        self._changed = asyncio.Event()  # set and replaced at each change
        self._is_ending = False

    def set(self, service: str, *, serving: bool) -> None:
        """Tell watchers; ignored after `end`."""
        status = _SERVING if serving else _NOT_SERVING
        if not self._is_ending and self._statuses.get(service) != status:
            self._statuses[service] = status
            self._tell()

    def leave(self) -> None:
        """No service serves from now on. Watches go on, as clients would ask again at once."""
        for service in self._statuses:
            self.set(service, serving=False)

    def end(self) -> None:
        """End all watches, just before the server stops listening."""
        self.leave()
        self._is_ending = True
        self._tell()

    async def check(self, request: Any, context: Context) -> Any:
        """The status of one service."""
        if request.service not in self._statuses:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this server has no such service")
        return health_pb2.HealthCheckResponse(status=self._statuses[request.service])

    async def list(self, request: Any, context: Context) -> Any:
        """The status of all services, by name."""
        response = _pb2.HealthListResponse()
        for name, status in self._statuses.items():
            response.statuses[name].status = status
        return response

    async def watch(self, request: Any, context: Context) -> None:
        """The status of one service now, and at each change. Over after `end`: a watch keeps no
        server from stopping."""
        told: int | None = None
        while True:
            changed, is_last = self._changed, self._is_ending
            status = self._statuses.get(request.service, _UNKNOWN)
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            if is_last:
                return
            await changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def standard_handlers(
    its: Health, service_names: Iterable[str], gate: CallGate
) -> tuple[grpc.GenericRpcHandler, ...]:
    """Handlers of health, and of reflection for `service_names` and for these two services."""
    methods = {
        "Check": unary(health_pb2.HealthCheckRequest, its.check, gate),
        "List": unary(_pb2.HealthListRequest, its.list, gate),
        "Watch": unary_stream(health_pb2.HealthCheckRequest, its.watch, gate),
    }
    names = (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflect: Any = reflection.aio.ReflectionServicer(names)
    request_type = reflection_pb2.ServerReflectionRequest

    async def read_all(
        first: reflection_pb2.ServerReflectionRequest, context: Context
    ) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield first
        while (raw := await gate.try_read(context)) is not None:
            yield parse(request_type, raw)

    async def info(first: reflection_pb2.ServerReflectionRequest, context: Context) -> None:
        async for response in reflect.ServerReflectionInfo(read_all(first, context), context):
            await context.write(response)

    return (
        grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods),
        grpc.method_handlers_generic_handler(
            reflection.SERVICE_NAME,
            {"ServerReflectionInfo": unary_stream(request_type, info, gate)},
        ),
    )
