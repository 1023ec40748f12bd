"""gRPC's standard health and reflection services, with our call bounds and our parsing.

The generated handlers answer malformed bytes with UNKNOWN, and log a traceback.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from twolane.rpc.call_gate import CallGate, Context
from twolane.rpc.handlers import parse, unary, unary_stream

_pb2: Any = health_pb2  # the stubs do not know List yet


class Health(health.aio.HealthServicer):
    """The library's health service, with `List`, which the library lacks."""

    def __init__(self) -> None:
        super().__init__()
        self._names = {""}

    async def set(self, service: str, status: Any) -> None:
        self._names.add(service)
        await super().set(service, status)

    async def List(self, request: Any, context: Context) -> Any:
        """The status of all services, by name."""
        response = _pb2.HealthListResponse()
        for name in self._names:
            asked = health_pb2.HealthCheckRequest(service=name)
            response.statuses[name].CopyFrom(await self.Check(asked, context))
        return response


def standard_handlers(
    servicer: Health, service_names: Iterable[str], gate: CallGate
) -> tuple[grpc.GenericRpcHandler, ...]:
    """Handlers of health, and of reflection for `service_names` and for these two services."""
    methods = {
        "Check": unary(health_pb2.HealthCheckRequest, servicer.Check, gate),
        "List": unary(_pb2.HealthListRequest, servicer.List, gate),
        "Watch": unary_stream(health_pb2.HealthCheckRequest, servicer.Watch, gate),
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
