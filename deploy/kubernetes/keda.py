"""Tells KEDA how many pods each StatefulSet is to have: an external scaler.

KEDA's HPA sets a StatefulSet to `value / 1` pods. The value is the number of pods that the taken
seats need, so it never falls below what has a worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import grpc

from twolane.deploy.agent.made_hosts import MadeHosts
from twolane.deploy.kubernetes.executor import replicas_of
from twolane.deploy.spec.cluster_spec import HostSetSpec
from twolane.rpc.call_gate import Context
from twolane.rpc.channel_options import INTERNAL_SERVER_OPTIONS
from twolane.rpc.handlers import unary, unary_stream
from twolane.security.credentials import Credentials
from twolane.security.identity import Identity, Role
from twolane.v1 import external_scaler_pb2 as keda_pb2

log = logging.getLogger(__name__)

SERVICE = keda_pb2.DESCRIPTOR.services_by_name["ExternalScaler"].full_name
SET = "set"  # the key in a trigger's metadata that names the StatefulSet
METRIC = "twolane_pods"
_OPTION = "kubernetes.keda_port"


class ExternalScaler:
    """`may_act`: whether this controller is the one whose word counts. `poll_s`: how often a stream
    looks for a change."""

    def __init__(
        self,
        made: MadeHosts,
        sets: Sequence[HostSetSpec],
        may_act: Callable[[], bool],
        *,
        poll_s: float = 0.2,
    ) -> None:
        self._made = made
        self._may_act = may_act
        self._sets = {its.name: its for its in sets}
        self._poll_s = poll_s

    def handler(self) -> grpc.GenericRpcHandler:
        ref = keda_pb2.ScaledObjectRef
        methods = {
            "IsActive": unary(ref, self._is_active),
            "StreamIsActive": unary_stream(ref, self._stream_is_active),
            "GetMetricSpec": unary(ref, self._metric_spec),
            "GetMetrics": unary(keda_pb2.GetMetricsRequest, self._metrics),
            "StreamMetricSpec": unary_stream(ref, self._stream_metric_spec),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _is_active(
        self, request: keda_pb2.ScaledObjectRef, context: Context
    ) -> keda_pb2.IsActiveResponse:
        return keda_pb2.IsActiveResponse(result=await self._pods(request, context) > 0)

    async def _stream_is_active(self, request: keda_pb2.ScaledObjectRef, context: Context) -> None:
        told: bool | None = None
        while True:
            is_active = await self._pods(request, context) > 0
            if is_active != told:
                await context.write(keda_pb2.IsActiveResponse(result=is_active))
                told = is_active
            await asyncio.sleep(self._poll_s)

    async def _metric_spec(
        self, request: keda_pb2.ScaledObjectRef, context: Context
    ) -> keda_pb2.GetMetricSpecResponse:
        return _SPEC

    async def _stream_metric_spec(
        self, request: keda_pb2.ScaledObjectRef, context: Context
    ) -> None:
        await context.write(_SPEC)
        await asyncio.Event().wait()  # until KEDA closes it

    async def _metrics(
        self, request: keda_pb2.GetMetricsRequest, context: Context
    ) -> keda_pb2.GetMetricsResponse:
        n = await self._pods(request.scaledObjectRef, context)
        self._made.counters["keda.answered"] += 1
        value = keda_pb2.MetricValue(metricName=METRIC, metricValue=n, metricValueFloat=n)
        return keda_pb2.GetMetricsResponse(metricValues=[value])

    async def _pods(self, request: keda_pb2.ScaledObjectRef, context: Context) -> int:
        name = request.scalerMetadata.get(SET, "")
        its = self._sets.get(name)
        if its is None:
            known = ", ".join(self._sets)
            why = f"the trigger's metadata has {SET}: {name!r}; there are {known}"
            await self._refused(context, grpc.StatusCode.INVALID_ARGUMENT, why)
        if self._made.wanted is None:  # guard: KEDA keeps what there is
            why = "the controller has just started"
            await self._refused(context, grpc.StatusCode.UNAVAILABLE, why)
        if not self._may_act():  # guard: the one controller answers
            why = "another controller may have taken over"
            await self._refused(context, grpc.StatusCode.UNAVAILABLE, why)
        assert its is not None
        assert self._made.wanted is not None
        return replicas_of(its, self._made.wanted)

    async def _refused(self, context: Context, code: grpc.StatusCode, why: str) -> None:
        self._made.counters["keda.refused"] += 1
        await context.abort(code, why)


_SPEC = keda_pb2.GetMetricSpecResponse(
    metricSpecs=[keda_pb2.MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)]
)


@asynccontextmanager
async def serve(
    scaler: ExternalScaler, credentials: Credentials, host: str, port: int
) -> AsyncIterator[int]:
    """Serve it, and yield the port. KEDA shows a viewer's certificate. Raises `ListenError`."""
    keda = Identity(Role.VIEWER, "keda")
    gate = credentials.gate("KEDA's scaler", host, _OPTION, takes_secret=False, anonymous=keda)
    server = grpc.aio.server(interceptors=[gate], options=INTERNAL_SERVER_OPTIONS)
    server.add_generic_rpc_handlers((scaler.handler(),))
    port = credentials.bind(server, host, port, _OPTION)
    await server.start()
    log.info("KEDA's scaler serves at %s:%d", host, port)
    try:
        yield port
    finally:
        await server.stop(grace=0)
