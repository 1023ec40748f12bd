"""The router's figures are what they are called, and current when somebody looks."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import grpc
import httpx2
import pytest

from twolane.errors import InvalidRequestError, UnknownModelError
from twolane.router.config import HttpConfig, RouterConfig, ServerConfig
from twolane.router.doors import vllm_names
from twolane.router.doors.scrape_targets import TARGETS, scrape_targets
from twolane.router.doors.server import RouterServer
from twolane.router.testing.client import ask, message
from twolane.router.testing.served import serve_cluster
from twolane.v1 import cluster_pb2, inference_pb2_grpc, worker_pb2

SERVER = ServerConfig(stop_grace_s=0.2)
CONFIG = RouterConfig()


async def page(server: RouterServer, path: str = "/metrics", accept: str = "*/*") -> str:
    url = f"http://{server.metrics_address}{path}"
    request = urllib.request.Request(url, headers={"accept": accept})

    def read() -> str:
        with urllib.request.urlopen(request, timeout=60) as response:
            text: str = response.read().decode()
        return text

    return await asyncio.to_thread(read)


def value(text: str, name: str, **labels: str) -> float:
    """0 where there is no such sample."""
    for line in text.splitlines():
        series, _, number = line.rpartition(" ")
        has_labels = all(f'{key}="{label}"' in series for key, label in labels.items())
        if series.partition("{")[0] == name and has_labels:
            return float(number)
    return 0.0


async def test_counters_are_those_of_the_moment() -> None:
    async with serve_cluster("p0", "d0", config=CONFIG, server_config=SERVER) as (server, _):
        for n in (1, 2, 3):
            await ask(server.router, message([1, 2], max_tokens=6))
            text = await page(server)
            assert value(text, "twolane_router_finished_total") == n
            assert value(text, "twolane_router_attempts_total") == n
            for name in ("ttft", "queue"):
                assert value(text, f"twolane_router_{name}_seconds_count", model="fake") == n
            outcome = {"model": "fake", "outcome": "finished"}
            assert value(text, "twolane_router_request_seconds_count", **outcome) == n
            assert value(text, "twolane_router_prompt_tokens_total", model="fake") == 2 * n
            assert value(text, "twolane_router_generated_tokens_total", model="fake") == 6 * n
        assert value(text, "twolane_router_workers", state="alive") == 2
        assert "_created" not in text


async def test_a_repeated_attempt_is_not_a_counters_first_value() -> None:
    async with serve_cluster("p0", "d0", config=CONFIG, server_config=SERVER) as (server, _):
        text = await page(server)
        assert 'twolane_router_resumes_total{reason="decode_worker_lost"} 0.0' in text


async def test_refusals_of_every_kind_are_counted() -> None:
    server_config = ServerConfig(stop_grace_s=0.2, http=HttpConfig())
    async with (
        serve_cluster("p0", "d0", config=CONFIG, server_config=server_config) as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
        httpx2.AsyncClient(base_url=f"http://{server.http_address}", timeout=30.0) as http,
    ):
        await ask(server.router, message([1, 2], max_tokens=3))

        async def refused(request: Any, kind: type[Exception]) -> None:
            with pytest.raises(kind):
                async for _ in server.router.generate(request):
                    pass

        await refused(message([1, 2], temperature=-1.0), InvalidRequestError)
        await refused(message([1] * 3000), InvalidRequestError)
        unknown = message([1])
        unknown.model = "nope"
        await refused(unknown, UnknownModelError)
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        raw: Any = channel.unary_stream("/twolane.v1.InferenceService/Generate")
        call = raw(b"\xff\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError):
            await anext(aiter(stub.Generate(unknown)))
        answer = await http.post("/v1/completions", json={"prompt": [1], "no_such_field": 1})
        assert answer.status_code == 400
        text = await page(server)
    lines = [line for line in text.splitlines() if line.startswith("twolane_router_refused_total")]
    counts = {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}
    assert counts["unknown_model"] == 2
    assert sum(counts.values()) == 6, counts
    assert value(text, "twolane_router_finished_total") == 1


def target(endpoint: str, **labels: str) -> dict[str, Any]:
    return {"targets": [endpoint], "labels": labels}


def test_targets_are_the_router_and_every_worker_at_hosts_that_the_scraper_reaches() -> None:
    status = cluster_pb2.GetClusterStatusResponse(router_id="r", metrics_endpoint="0.0.0.0:9100")
    status.workers.add(
        worker=worker_pb2.WorkerAddress(worker_id="decode-0"),
        roles=[worker_pb2.ROLE_DECODE],
        state="alive",
        pool="writers",
        model="m",
        metrics_endpoint="0.0.0.0:9101",
    )
    status.workers.add(
        worker=worker_pb2.WorkerAddress(worker_id="p"),
        roles=[worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE],
        state="suspect",
        metrics_endpoint="[::]:9102",
    )
    status.workers.add(state="gone", metrics_endpoint="10.0.0.9:1")
    status.workers.add(state="alive")  # without metrics
    assert json.loads(scrape_targets(status, "node7:9100")) == [
        target("node7:9100", router="r"),
        target("node7:9101", worker="decode-0", pool="writers", role="decode", model="m"),
        target("node7:9102", worker="p", pool="", role="prefill+decode", model=""),
    ]
    assert json.loads(scrape_targets(status, "[fe80::7]:9100"))[0] == target(
        "[fe80::7]:9100", router="r"
    )
    assert json.loads(scrape_targets(status, "node7"))[0] == target("node7:9100", router="r")


async def test_the_targets_are_at_the_routers_metrics_page() -> None:
    async with serve_cluster("p0", "d0", server_config=SERVER) as (server, _):
        (router, *_) = json.loads(await page(server, TARGETS))
        assert router["targets"] == [server.metrics_address]


@pytest.mark.parametrize(
    "accept", ["*/*", "application/openmetrics-text;version=1.0.0", "text/plain;version=1.0.0"]
)
async def test_figures_have_vllms_names_too(accept: str) -> None:
    server_config = ServerConfig(stop_grace_s=0.2)
    async with serve_cluster("p0", "d0", config=CONFIG, server_config=server_config) as (server, _):
        for _ in range(2):
            await ask(server.router, message([1, 2], max_tokens=6))
        long = asyncio.create_task(ask(server.router, message([1], request_id="x", max_tokens=900)))
        while not value(text := await page(server), "vllm:num_requests_running", model_name="fake"):
            assert value(text, "vllm:num_requests_waiting", model_name="fake") <= 1
        server.router.cancel("x")
        assert (await long).error is not None
        text = await page(server, accept=accept)
    assert value(text, "vllm:num_requests_running", model_name="fake") == 0
    assert 'vllm:num_requests_waiting{model_name="fake"} 0.0' in text, "autoscalers need a zero"
    for name, ours in {
        "time_to_first_token_seconds_count": "ttft_seconds_count",
        "time_to_first_token_seconds_sum": "ttft_seconds_sum",
        "inter_token_latency_seconds_count": "gap_seconds_count",
        "time_per_output_token_seconds_count": "gap_seconds_count",
        "request_queue_time_seconds_count": "queue_seconds_count",
        "prompt_tokens_total": "prompt_tokens_total",
        "generation_tokens_total": "generated_tokens_total",
    }.items():
        own = value(text, f"twolane_router_{ours}", model="fake")
        assert value(text, f"vllm:{name}", model_name="fake") == own > 0
    for name in ("e2e_request_latency_seconds_count", "request_success_total"):
        assert value(text, f"vllm:{name}", model_name="fake") == 2, "not those that were cancelled"
    assert value(text, "vllm:e2e_request_latency_seconds_bucket", le="+Inf") == 2


def test_cache_usage_is_of_each_pool() -> None:
    status = cluster_pb2.GetClusterStatusResponse()
    for pool, used, free in (("prefill", 0, 10), ("decode", 6, 2), ("decode", 0, 8)):
        worker = status.workers.add(state="alive", pool=pool, model="m")
        worker.load.pages.used, worker.load.pages.free = used, free
    status.workers.add(state="gone", pool="decode", model="m").load.pages.used = 99
    usage = {metric.name: metric for metric in vllm_names.gauges(status, {})}
    for name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"):
        shares = {sample.labels["pool"]: sample.value for sample in usage[name].samples}
        assert shares == {"prefill": 0.0, "decode": 6 / 16}
