"""KEDA's external scaler, as KEDA and its HPA use it: by a client made from the proto."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from tests.deploy.kubernetes.fake_api import FakeApi
from tests.deploy.kubernetes.test_executor import SETS, World
from twolane.deploy.kubernetes.keda import METRIC, ExternalScaler, serve
from twolane.deploy.spec.cluster_spec import HostSetSpec
from twolane.rpc.listen import ListenError
from twolane.security.credentials import Credentials
from twolane.v1.external_scaler_pb2 import GetMetricsRequest, ScaledObjectRef
from twolane.v1.external_scaler_pb2_grpc import ExternalScalerStub

CODE = grpc.StatusCode
DECODE = ScaledObjectRef(name="x-decode", namespace="t", scalerMetadata={"set": "x-decode"})


@asynccontextmanager
async def scaler(
    sets: Sequence[HostSetSpec] = SETS,
) -> AsyncIterator[tuple[World, ExternalScalerStub]]:
    world = World(FakeApi(), sets)
    its = ExternalScaler(world.made, sets, lambda: world.may_act, poll_s=0.01)
    async with (
        serve(its, Credentials(), "127.0.0.1", 0) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield world, ExternalScalerStub(channel)


async def hpa(stub: ExternalScalerStub, pods: int, *, tolerance: float = 0.1) -> int:
    """What KEDA sets the set of so many pods to: its HPA above zero, with the trigger's metric as
    an average value; KEDA itself from and to zero. The HPA keeps what there is if the metric's
    ratio to its target differs from 1 by no more than the tolerance."""
    if not (await stub.IsActive(DECODE)).result:
        return 0
    (spec,) = (await stub.GetMetricSpec(DECODE)).metricSpecs
    asked = GetMetricsRequest(scaledObjectRef=DECODE, metricName=spec.metricName)
    (value,) = (await stub.GetMetrics(asked)).metricValues
    assert value.metricName == spec.metricName == METRIC
    assert value.metricValue == value.metricValueFloat
    n: float = value.metricValueFloat / spec.targetSizeFloat
    if pods and abs(n / pods - 1) <= tolerance:
        return pods
    return math.ceil(n)


async def test_keda_sets_a_set_to_what_its_seats_need_and_never_below() -> None:
    async with scaler() as (world, stub):
        pods = 1
        for seats in ([0], [0, 1], [0, 1, 2], [1, 2], [2], [0], [], [3], []):
            world.want([0], seats)
            pods = await hpa(stub, pods)
            assert pods == max((seat + 1 for seat in seats), default=0)
        assert world.made.counters["keda.answered"] == 7, "above zero KEDA's HPA asks"
        assert world.made.counters["keda.refused"] == 0


@pytest.mark.parametrize(
    ("most", "tolerance", "is_exact"), [(9, 0.1, True), (10, 0.1, False), (30, 0.0, True)]
)
async def test_an_hpa_takes_each_step_of_nine_pods_and_of_more_only_without_tolerance(
    most: int, tolerance: float, is_exact: bool
) -> None:
    sets = (replace(SETS[0], most=1), replace(SETS[1], most=most))
    async with scaler(sets) as (world, stub):
        steps = []
        for n in range(1, most):
            for before, wanted in ((n, n + 1), (n + 1, n)):
                world.want([0], [wanted - 1])
                steps.append(await hpa(stub, before, tolerance=tolerance) == wanted)
        assert all(steps) == is_exact


async def test_a_stream_tells_at_once_when_a_set_comes_back_from_zero() -> None:
    async with scaler() as (world, stub):
        world.want([], [])
        call = stub.StreamIsActive(DECODE)
        assert not (await call.read()).result
        world.want([0], [0])
        assert (await call.read()).result
        call.cancel()


async def test_the_metrics_target_is_streamed_as_it_is() -> None:
    async with scaler() as (_, stub):
        call = stub.StreamMetricSpec(DECODE)
        assert await call.read() == await stub.GetMetricSpec(DECODE)
        call.cancel()


@pytest.mark.parametrize(
    ("metadata", "is_known", "code"),
    [
        ({"set": "x-other"}, True, CODE.INVALID_ARGUMENT),
        ({}, True, CODE.INVALID_ARGUMENT),
        ({"set": "x-decode"}, False, CODE.UNAVAILABLE),
    ],
)
async def test_keda_changes_nothing_where_no_size_is_known(
    metadata: dict[str, str], is_known: bool, code: grpc.StatusCode
) -> None:
    async with scaler() as (world, stub):
        if is_known:
            world.want([0], [0])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.IsActive(ScaledObjectRef(scalerMetadata=metadata))
        assert refused.value.code() is code
        assert world.made.counters["keda.refused"] == 1


async def test_keda_changes_nothing_while_another_controller_may_have_taken_over() -> None:
    async with scaler() as (world, stub):
        world.want([0], [0])
        world.may_act = False
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.IsActive(DECODE)
        assert refused.value.code() is CODE.UNAVAILABLE


async def test_the_scaler_needs_tls_beyond_this_machine() -> None:
    its = ExternalScaler(World(FakeApi()).made, SETS, lambda: True)
    with pytest.raises(ListenError, match="TLS"):
        async with serve(its, Credentials(), "0.0.0.0", 0):
            raise AssertionError("it serves in the clear")
