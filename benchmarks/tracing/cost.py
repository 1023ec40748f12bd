"""What traces cost a router: its CPU time of a burst of requests whose callers have their traces
sampled, by that of the same burst without.

    one router     burst sampled, sent | burst unsampled, as long a wait      a pair
                   burst unsampled     | burst sampled                        the next one

All bursts go to one process, because two differ by more than what is measured. The caller decides:
each request carries a `traceparent`, whose flag is 01 or 00, and the router's sampler follows it.
CPU time is that of all threads of the router, from a burst's begin until the collector has its last
span; spans are sent when a burst is over, because it fills a batch. Scripted workers answer with 25
tokens a second, and clients read by the SDK's stream, by which a token costs least: so the share of
the traces is the largest of all doors.

A trace is made when its request is over, whatever the length of its answer. So it is a larger part
of short answers, and they tell best what it costs; `share` is that by what a whole request costs.

An unsampled request is not quite one of a router without traces: its header is parsed, the sampler
asked, and the ids of its span are made. `--off-pairs` bounds that: unsampled bursts at this router,
and the same at one without a collector, which ignores the header. These are two processes, so both
are started again now and then. Not covered: answers to `Generate` calls of their own, instead of
the stream, name their span in a header where the caller has a trace, sampled or not.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Self

import click
import grpc
import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from benchmarks.control_plane.router_process import RouterProcess, start_router
from benchmarks.load.client import draw_prompt
from benchmarks.load.confidence import bootstrap_median
from benchmarks.load.target import ask
from benchmarks.results import save
from twolane.calls.multiplexed import Multiplexer
from twolane.rpc.channel_options import CHANNEL_OPTIONS
from twolane.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2

ENDPOINT, BATCH = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
AIM = 0.03
STEP_S, PROMPT_TOKENS = 0.04, 64
SPANS_A_REQUEST = 4  # by which a router knows that there is a batch
SENT_AFTER_S, SENT_WITHIN_S = 0.3, 60.0  # after the last answer: usually, at most
WARM_UP_PAIRS, WARM_UP_TOKENS = 2, 8
_EXPORT = "opentelemetry.proto.collector.trace.v1.TraceService"
_REQUEST = "request"  # the name of a request's own span
WITHOUT = "us_a_request_without"


class BurstError(RuntimeError):
    """A burst was not what it was to be: its CPU time says nothing."""


class Collector:
    """Counts what routers export."""

    def __init__(self) -> None:
        self.n_requests = self.n_spans = self.n_messages = self.n_bytes = 0
        self._news = asyncio.Event()

    async def wait_for(self, n_requests: int) -> None:
        """Until so many have come in all. Raises `TimeoutError`."""
        async with asyncio.timeout(SENT_WITHIN_S):
            while self.n_requests < n_requests:
                self._news.clear()
                await self._news.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Yields its URL."""
        server = grpc.aio.server()
        export: Any = grpc.unary_unary_rpc_method_handler(self._export)
        handler = grpc.method_handlers_generic_handler(_EXPORT, {"Export": export})
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            await server.stop(grace=None)

    async def _export(self, message: bytes, _: object) -> bytes:
        for of_resource in ExportTraceServiceRequest.FromString(message).resource_spans:
            for of_scope in of_resource.scope_spans:
                self.n_spans += len(of_scope.spans)
                self.n_requests += sum(span.name == _REQUEST for span in of_scope.spans)
        self.n_messages += 1
        self.n_bytes += len(message)
        self._news.set()
        return ExportTraceServiceResponse().SerializeToString()


@contextmanager
def exporting(endpoint: str, n_requests: int) -> Iterator[None]:
    """Routers that start in the block export their traces, as soon as so many are over."""
    os.environ[ENDPOINT], os.environ[BATCH] = endpoint, str(SPANS_A_REQUEST * n_requests)
    try:
        yield
    finally:
        del os.environ[ENDPOINT], os.environ[BATCH]


def traceparent(*, sampled: bool) -> str:
    """Of a caller's span in a trace of its own."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{int(sampled):02x}"


class Client:
    """Sends bursts to one router, on one stream."""

    def __init__(self, router: RouterProcess, collector: Collector) -> None:
        self._router = router
        self._collector = collector

    async def __aenter__(self) -> Self:
        target = await ask("router", [self._router.endpoint])
        self._channel = grpc.aio.insecure_channel(self._router.endpoint, options=CHANNEL_OPTIONS)
        stub: Any = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._answers = Multiplexer(stub.Multiplex, stub.Generate)
        self._vocab_size = target.vocab_size
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._answers.close()
        await self._channel.close()

    async def burst_us(self, n: int, n_tokens: int, *, sampled: bool) -> float:
        """The router's CPU time a request, in µs. Raises `BurstError`."""
        collected = self._collector.n_requests
        before_s = self._router.cpu_s
        async with asyncio.TaskGroup() as tasks:
            for nth in range(n):
                tasks.create_task(self._answer(nth, n_tokens, sampled=sampled))
        await asyncio.sleep(SENT_AFTER_S)
        expected = n if sampled else 0
        await self._collector.wait_for(collected + expected)
        spent_s = self._router.cpu_s - before_s
        if (told := self._collector.n_requests - collected) != expected:
            raise BurstError(f"{told} traces came of {expected}")
        return spent_s / n * 1e6

    async def _answer(self, nth: int, n_tokens: int, *, sampled: bool) -> None:
        request = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(
                ids=draw_prompt(self._vocab_size, [0], nth, PROMPT_TOKENS)
            ),
            sampling=sampling_pb2.SamplingParams(
                max_tokens=n_tokens, temperature=0.0, seed=nth, ignore_eos=True
            ),
        )
        trace = (("traceparent", traceparent(sampled=sampled)),)
        n_read = 0
        async for response in self._answers.start(request, None, trace):
            n_read += len(response.tokens)
        if n_read != n_tokens:
            raise BurstError(f"an answer has {n_read} tokens of {n_tokens}")


@dataclass(frozen=True, slots=True)
class Pairs:
    """CPU time a request of paired bursts, in µs."""

    on: list[float]
    off: list[float]

    def figures(self) -> dict[str, Any]:
        """Medians over the pairs, with 95 % intervals."""
        on, off = np.array(self.on), np.array(self.off)
        figures: dict[str, Any] = {WITHOUT: round(float(np.median(off)), 1)}
        for name, values, digits in (("ratio", on / off, 4), ("added_us", on - off, 1)):
            figures[name] = round(float(np.median(values)), digits)
            figures[f"{name}_95"] = [round(end, digits) for end in bootstrap_median(values)]
        each = {"us_on": self.on, "us_off": self.off}
        return figures | {name: [round(us, 1) for us in them] for name, them in each.items()}

    def __str__(self) -> str:
        its = self.figures()
        (low, high), (low_us, high_us) = its["ratio_95"], its["added_us_95"]
        return (
            f"{len(self.on)} pairs: {its[WITHOUT]:,.0f} us a request, median "
            f"{its['ratio'] - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%}), "
            f"{its['added_us']:+.0f} us ({low_us:+.0f} to {high_us:+.0f})"
        )


async def sampled_by_not(client: Client, n_pairs: int, n_requests: int, n_tokens: int) -> Pairs:
    """Sampled requests (on) against unsampled ones (off), at one router."""
    pairs = Pairs([], [])
    for nth in range(-WARM_UP_PAIRS, n_pairs):
        for sampled in (True, False) if nth % 2 else (False, True):
            length = n_tokens if nth >= 0 else min(n_tokens, WARM_UP_TOKENS)
            us = await client.burst_us(n_requests, length, sampled=sampled)
            if nth >= 0:
                (pairs.on if sampled else pairs.off).append(us)
        if nth >= 0:
            _tell(f"{n_tokens} tokens", pairs)
    return pairs


async def unsampled_by_off(
    collector: Collector, url: str, starts: int, n_pairs: int, n_requests: int, n_tokens: int
) -> Pairs:
    """Unsampled requests at a router with traces (on), against the same at one without (off)."""
    pairs = Pairs([], [])
    for start in range(starts):
        on, off = started(collector, n_requests, url), started(collector, n_requests, None)
        async with on as with_traces, off as without:
            for nth in range(-WARM_UP_PAIRS, n_pairs // starts):
                for is_on in (True, False) if (nth + start) % 2 else (False, True):
                    client = with_traces if is_on else without
                    us = await client.burst_us(n_requests, n_tokens, sampled=False)
                    if nth >= 0:
                        (pairs.on if is_on else pairs.off).append(us)
                if nth >= 0:
                    _tell("unsampled against off", pairs)
    return pairs


@asynccontextmanager
async def started(collector: Collector, n_requests: int, url: str | None) -> AsyncIterator[Client]:
    """A router that exports to the URL, as soon as so many requests are over, and its client."""
    with ExitStack() as stack:
        with exporting(url, n_requests) if url is not None else nullcontext():
            router = stack.enter_context(start_router(STEP_S))
        async with Client(router, collector) as client:
            yield client


def _tell(what: str, pairs: Pairs) -> None:
    on, off = pairs.on[-1], pairs.off[-1]
    click.echo(f"{what}: {off:,.0f} us, {on:,.0f} us: {on / off - 1:+.1%} {on - off:+.0f} us")


def shares(points: Mapping[str, Pairs]) -> dict[str, list[float]]:
    """What a trace costs, by what a request costs: the median, and a 95 % interval. The point with
    the cheapest requests tells what a trace costs."""
    told = min((pairs.figures() for pairs in points.values()), key=itemgetter(WITHOUT))
    ends = (told["added_us"], *told["added_us_95"])
    return {
        name: [round(us / pairs.figures()[WITHOUT], 4) for us in ends]
        for name, pairs in points.items()
    }


async def measure(
    asked: Sequence[tuple[int, int]], off_pairs: int, starts: int, n_requests: int
) -> dict[str, Any]:
    collector, points = Collector(), dict[str, Pairs]()
    async with collector.running() as url:
        async with started(collector, n_requests, url) as client:
            for n_tokens, n_pairs in asked:
                pairs = await sampled_by_not(client, n_pairs, n_requests, n_tokens)
                points[f"{n_tokens} tokens"] = pairs
        against_off = await unsampled_by_off(
            collector, url, starts, off_pairs, n_requests, min(asked)[0]
        )
    sent = {
        "spans_a_trace": round(collector.n_spans / collector.n_requests, 2),
        "traces_a_message": round(collector.n_requests / collector.n_messages),
        "bytes_a_trace": round(collector.n_bytes / collector.n_requests),
    }
    for name, pairs in points.items():
        click.echo(f"{name}: {pairs}")
    for name, (share, low, high) in shares(points).items():
        click.echo(f"{name}: a trace is {share:.2%} of a request ({low:.2%} to {high:.2%})")
    found = {"points": {name: pairs.figures() for name, pairs in points.items()}}
    if against_off.on:
        click.echo(f"unsampled against off: {against_off}")
        found["unsampled_against_off"] = against_off.figures()
    return {"sent": sent, "share": shares(points), **found}


@click.command(help="Measure what traces cost a router.")
@click.option(
    "--point",
    "points",
    type=(int, int),
    multiple=True,
    default=((2, 200), (256, 24)),
    show_default=True,
    help="Tokens of each answer, and pairs of bursts.",
)
@click.option("--off-pairs", default=60, show_default=True, help="At two routers; 0: none.")
@click.option("--starts", default=6, show_default=True, help="Of these two routers.")
@click.option("--requests", default=256, show_default=True, help="Of each burst.")
def main(points: Sequence[tuple[int, int]], off_pairs: int, starts: int, requests: int) -> None:
    found = asyncio.run(measure(points, off_pairs, starts if off_pairs else 0, requests))
    settings = {
        "door": "the SDK's stream",
        "requests_a_burst": requests,
        "prompt_tokens": PROMPT_TOKENS,
        "tokens_per_s_a_stream": 1 / STEP_S,
        "batch_spans": SPANS_A_REQUEST * requests,
        "waited_s_after_a_burst": SENT_AFTER_S,
        "starts_of_routers_with_and_without": starts,
    }
    path = save("tracing_cost", {"aim": AIM, "settings": settings, **found})
    click.echo(f"aim: at most {AIM:.0%}; saved {path}")


if __name__ == "__main__":
    main()
