"""The router on loopback: every bad input gets its own status with details, and serving goes on."""

import asyncio
import socket
import subprocess
import sys
import urllib.request
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from tests.router.freed import until_free
from tests.until import until
from twolane.router.config import AdmissionConfig, LimitsConfig, RouterConfig, ServerConfig
from twolane.router.testing.client import message
from twolane.router.testing.rows import expected_answer
from twolane.router.testing.served import serve_cluster
from twolane.router.text.codec import TextCodec
from twolane.rpc.listen import ListenError
from twolane.rpc.secret import shown
from twolane.v1 import (
    inference_pb2,
    inference_pb2_grpc,
    sampling_pb2,
)

CODE = grpc.StatusCode
SERVER = ServerConfig(stop_grace_s=0.2, metrics_port=None)
CONFIG = RouterConfig(
    limits=LimitsConfig(message_bytes=20_000, prompt_tokens=3000, prompt_bytes=1000),
)


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The google.rpc details by type name."""
    status = rpc_status.from_call(cast(grpc.Call, error))
    found = {}
    for detail in status.details if status is not None else ():
        for kind in (
            error_details_pb2.ErrorInfo,
            error_details_pb2.BadRequest,
            error_details_pb2.RetryInfo,
        ):
            if detail.Is(kind.DESCRIPTOR):
                found[kind.__name__] = kind.FromString(detail.value)
    return found


async def collect(
    channel: Any, request: inference_pb2.GenerateRequest, time_left_s: Any = None
) -> Any:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    return [response async for response in stub.Generate(request, timeout=time_left_s)]


async def raw_call(channel: Any, method: Any, raw: Any) -> Any:
    call = channel.unary_unary(method)
    return await call(raw, metadata=shown(SERVER.credentials.secret))


async def raw_generate(channel: Any, raw: Any) -> Any:
    call = channel.unary_stream("/twolane.v1.InferenceService/Generate")
    return [response async for response in call(raw)]


def with_(request: inference_pb2.GenerateRequest, **fields: Any) -> Any:
    for name, value in fields.items():
        if name == "constraint":
            request.constraint.regex = value
        else:
            setattr(request, name, value)
    return request


BAD = [
    ("empty prompt", inference_pb2.GenerateRequest(), CODE.INVALID_ARGUMENT, "prompt"),
    ("no ids", message([]), CODE.INVALID_ARGUMENT, "token_ids"),
    ("empty text", message(""), CODE.INVALID_ARGUMENT, "text"),
    ("oversized prompt", message([1] * 3001), CODE.INVALID_ARGUMENT, "len(prompt tokens)"),
    ("oversized text", message("x" * 1001), CODE.INVALID_ARGUMENT, "len(prompt) in bytes"),
    ("longer than the context", message([1] * 2048), CODE.INVALID_ARGUMENT, "prompt"),
    (
        "more than the context",
        message([1] * 1900, max_tokens=149),
        CODE.INVALID_ARGUMENT,
        "max_tokens",
    ),
    (
        "more pages than any worker",
        message([1] * 1000, max_tokens=930),
        CODE.INVALID_ARGUMENT,
        "max_tokens",
    ),
    ("unknown id", message([1, 1000]), CODE.INVALID_ARGUMENT, "token_ids"),
    ("negative id", message([-1]), CODE.INVALID_ARGUMENT, "token_ids"),
    ("negative max_tokens", message([1], max_tokens=-1), CODE.INVALID_ARGUMENT, "max_tokens"),
    ("absurd temperature", message([1], temperature=1e9), CODE.INVALID_ARGUMENT, "temperature"),
    ("nan", message([1], top_p=float("nan")), CODE.INVALID_ARGUMENT, "top_p"),
    ("negative seed", message([1], seed=-7), CODE.INVALID_ARGUMENT, "seed"),
    ("absurd priority", with_(message([1]), priority=10**6), CODE.INVALID_ARGUMENT, "priority"),
    ("unknown model", with_(message([1]), model="nope"), CODE.NOT_FOUND, None),
    ("samples", with_(message([1]), n=4), CODE.UNIMPLEMENTED, None),
    ("adapter", with_(message([1]), adapter="a"), CODE.UNIMPLEMENTED, None),
    ("version", with_(message([1]), model_version="2"), CODE.UNIMPLEMENTED, None),
    ("constraint", with_(message([1]), constraint="a+"), CODE.UNIMPLEMENTED, None),
]


async def test_every_bad_request_gets_its_status_with_details_and_the_server_goes_on(
    codec: TextCodec,
) -> None:
    async with (
        serve_cluster("p0", "d0", config=CONFIG, text=codec, n_pages=120) as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        await collect(channel, message([1, 2], max_tokens=3))
        for name, request, code, field in BAD:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await collect(channel, request)
            assert caught.value.code() is code, name
            details = details_of(caught.value)
            assert details["ErrorInfo"].domain == "twolane", name
            assert details["ErrorInfo"].reason, name
            if field is not None:
                assert details["BadRequest"].field_violations[0].field == field, name
            good = await collect(channel, message([1, 2], max_tokens=3))
            tokens = [token.token_id for response in good for token in response.tokens]
            assert tokens == expected_answer([1, 2], 3), name


METHODS = [
    "/twolane.v1.InferenceService/Cancel",
    "/twolane.v1.InferenceService/ListModels",
    "/twolane.v1.InferenceService/GetStatus",
]
WORKER_METHODS = [
    "/twolane.v1.MembershipService/Announce",
    "/twolane.v1.MembershipService/ReportGone",
]


async def test_malformed_bytes_are_an_invalid_argument_with_details() -> None:
    async with (
        serve_cluster(server_config=SERVER) as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
        grpc.aio.insecure_channel(server.worker_address) as worker_channel,
    ):
        calls = [(channel, method) for method in METHODS]
        calls += [(worker_channel, method) for method in WORKER_METHODS]
        for raw in (b"\xff\xff\xff", b"\x0a\xff"):
            for at, method in calls:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await raw_call(at, method, raw)
                assert caught.value.code() is CODE.INVALID_ARGUMENT, method
                assert details_of(caught.value)["ErrorInfo"].reason == "INVALID_REQUEST"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await raw_generate(channel, raw)
            assert caught.value.code() is CODE.INVALID_ARGUMENT
            assert "GenerateRequest" in str(caught.value.details())


async def test_full_queue_and_expired_deadline_have_their_own_status(codec: TextCodec) -> None:
    config = RouterConfig(admission=AdmissionConfig(max_queued=1, extra_rows=0))
    async with (
        serve_cluster("p0", "d0", config=config, decode_rows=1, step_s=0.05) as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        await collect(channel, message([1, 2], max_tokens=3))
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        running = stub.Generate(message([1], max_tokens=1900))
        await running.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(channel, message([3], max_tokens=2), time_left_s=0.1)
        assert caught.value.code() is CODE.DEADLINE_EXCEEDED
        await until(lambda: len(server.router.status().requests) == 1, "its place is free")
        waiting = aiter(stub.Generate(message([2], max_tokens=2)))
        await anext(waiting)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(channel, message([3], max_tokens=2))
        assert caught.value.code() is CODE.RESOURCE_EXHAUSTED
        details = details_of(caught.value)
        assert details["RetryInfo"].retry_delay.ToMilliseconds() > 0
        assert details["ErrorInfo"].metadata["bound"] == "1"
        running.cancel()
        rest = [response async for response in waiting]
        assert rest[-1].finish_reason == sampling_pb2.FINISH_REASON_LENGTH


async def test_cancelled_call_frees_the_workers() -> None:
    async with (
        serve_cluster("p0", "d0", step_s=0.05) as (server, cluster),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        await collect(channel, message([1, 2], max_tokens=3))
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(
            message([1], max_tokens=1900)
        )
        for _ in range(5):
            await call.read()
        assert cluster.workers["d0"].rows
        call.cancel()
        await until_free(server, cluster)


async def test_cancel_by_id_from_another_connection_ends_the_stream_with_cancelled() -> None:
    async with (
        serve_cluster("p0", "d0", step_s=0.05) as (server, _),
        grpc.aio.insecure_channel(server.address) as one,
        grpc.aio.insecure_channel(server.address) as two,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(one)
        call = aiter(stub.Generate(message([1], request_id="mine", max_tokens=1900)))
        first = await anext(call)
        assert first.request_id == "mine"
        other = inference_pb2_grpc.InferenceServiceStub(two)
        assert (await other.Cancel(inference_pb2.CancelRequest(request_id="mine"))).found
        assert not (await other.Cancel(inference_pb2.CancelRequest(request_id="x"))).found
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [response async for response in call]
        assert caught.value.code() is CODE.CANCELLED
        for request in (
            inference_pb2.CancelRequest(),
            inference_pb2.CancelRequest(request_id="mine", submission_id=first.submission_id),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await other.Cancel(request)
            assert caught.value.code() is CODE.INVALID_ARGUMENT


async def test_health_is_serving_only_while_some_model_can_be_served() -> None:
    async with (
        serve_cluster("p0") as (server, cluster),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stub: Any = health_pb2_grpc.HealthStub(channel)

        async def status(service: str) -> int:
            return int((await stub.Check(health_pb2.HealthCheckRequest(service=service))).status)

        serving = health_pb2.HealthCheckResponse.SERVING
        for service in ("twolane.v1.InferenceService", ""):
            assert await status(service) == health_pb2.HealthCheckResponse.NOT_SERVING
    async with (
        serve_cluster("p0", "d0") as (server, cluster),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        for wanted, change in ((serving, None), (2, cluster.workers["d0"].kill)):
            if change is not None:
                change()
            async with asyncio.timeout(30.0):
                while {await status("twolane.v1.InferenceService"), await status("")} != {wanted}:
                    await asyncio.sleep(0.05)


async def test_health_follows_the_first_workers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher waits for it; at other times health may lag behind."""
    monkeypatch.setattr("twolane.router.doors.server.PUBLISH_S", 3600.0)
    async with (
        serve_cluster("p0", "d0") as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
        asyncio.timeout(30.0),
    ):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request, serving = health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse.SERVING
        while (await stub.Check(request)).status != serving:
            await asyncio.sleep(0.02)


async def test_reflection_lists_the_services() -> None:
    async with (
        serve_cluster() as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stub: Any = cast(Any, reflection_pb2_grpc.ServerReflectionStub)(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for response in stub.ServerReflectionInfo(iter([request])):
            names = {service.name for service in response.list_services_response.service}
        assert "twolane.v1.InferenceService" in names
        assert "twolane.v1.AdminService" not in names


async def test_metrics_endpoint_tells_pages_requests_and_durations() -> None:
    async with (
        serve_cluster("p0", "d0", server_config=ServerConfig(stop_grace_s=0.2)) as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        await collect(channel, message([1, 2], max_tokens=6))
        url = f"http://127.0.0.1:{server.metrics_port}/metrics"
        expected = {
            'twolane_router_worker_pages{pool="",state="free",worker="d0"} 256.0',
            "twolane_router_finished_total 1.0",
            'twolane_router_ttft_seconds_count{model="fake"} 1.0',
            'twolane_router_gap_seconds_count{model="fake"} 5.0',
            'twolane_router_queue_seconds_count{model="fake"} 1.0',
        }

        def has_all() -> bool:  # workers report their pages once a second
            with urllib.request.urlopen(url) as response:
                return not expected - set(response.read().decode().splitlines())

        await until(has_all, "the figures are those after the request", is_slow=True)


async def test_models_are_listed_once_there_are_workers_of_both_roles() -> None:
    async with (
        serve_cluster("p0", "d0") as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        models: list[inference_pb2.Model] = []
        async with asyncio.timeout(30.0):
            while not models:
                await asyncio.sleep(0.01)
                answer = await stub.ListModels(inference_pb2.ListModelsRequest())
                models = list(answer.models)
        (model,) = models
        assert (model.name, model.vocab_size, model.max_context_tokens) == ("fake", 1000, 2048)


async def test_port_in_use_is_an_error_and_not_a_silent_second_server() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ListenError, match=r"\(--port\): it is in use"):
            async with serve_cluster(server_config=ServerConfig(port=taken.getsockname()[1])):
                pass
        with pytest.raises(ListenError, match=r"\(--worker-port\): it is in use"):
            async with serve_cluster(
                server_config=ServerConfig(worker_port=taken.getsockname()[1])
            ):
                pass


def test_router_never_loads_torch() -> None:
    code = (
        "import sys, asyncio\n"
        "from twolane.router.testing.served import serve_cluster\n"
        "from twolane.router.testing.client import ask, message\n"
        "async def main():\n"
        "    async with serve_cluster('p0', 'd0') as (server, _):\n"
        "        outcome = await ask(server.router, message([1, 2], max_tokens=3))\n"
        "        assert len(outcome.tokens) == 3, outcome.error\n"
        "asyncio.run(main())\n"
        "heavy = {'torch', 'triton', 'transformers', 'ray', 'numpy', 'worker', 'engine',\n"
        "         'kvtransfer', 'prefill_worker', 'decode_worker', 'deploy'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


async def test_a_metrics_port_that_somebody_has_does_not_keep_a_router_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        config = ServerConfig(stop_grace_s=0.2, metrics_port=taken)
        async with serve_cluster(server_config=config) as (server, _):
            assert server.metrics_port not in (None, 0, taken)
