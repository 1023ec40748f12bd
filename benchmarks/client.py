"""One client process: sends its share of a plan on time, and reports each answer.

Started by `benchmarks.crew`. JSON lines: a job comes in, "ready" goes out, the start time comes in
(seconds of CLOCK_MONOTONIC, one clock for all processes of a host), records go out as requests end.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import grpc
import numpy as np

from benchmarks.record import Record
from twolane.rpc.errors import from_rpc_error
from twolane.rpc.options import CHANNEL_OPTIONS
from twolane.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2

_LEDGER = (
    "queued_s", "prefill_wait_s", "prefill_s", "transfer_s", "decode_wait_s", "decode_s", "ttft_s",
    "cached_tokens", "transfer_pages", "transfer_bytes", "attempts",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One process's share. Rows of `requests`: index, arrival_s, prompt_tokens, output_tokens."""

    endpoint: str
    vocab_size: int
    seed: Sequence[int]
    timeout_s: float
    requests: list[tuple[int, float, int, int]]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def build_request(job: Job, index: int, n_prompt: int, n_output: int) -> Any:
    """Random token ids that depend on seed and index alone; the answer's length is forced."""
    rng = np.random.default_rng([*job.seed, index])
    ids = rng.integers(0, job.vocab_size, n_prompt).tolist()
    return inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=ids),
        sampling=sampling_pb2.SamplingParams(
            max_tokens=n_output, temperature=0.0, seed=index, ignore_eos=True
        ),
    )


async def send_job(
    job: Job,
    start: Callable[[], Awaitable[float]],
    emit: Callable[[Record], None],
) -> None:
    """Build every request, connect, call `start` for the time to start at, send open loop."""
    messages = [build_request(job, index, n, m) for index, _, n, m in job.requests]
    async with grpc.aio.insecure_channel(job.endpoint, options=CHANNEL_OPTIONS) as channel:
        await asyncio.wait_for(channel.channel_ready(), timeout=30)
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        gc.freeze()
        start_s = await start()
        async with asyncio.TaskGroup() as tasks:
            for message, request in zip(messages, job.requests, strict=True):
                tasks.create_task(_send_one(stub, message, job, request, start_s, emit))


async def _send_one(
    stub: Any,
    message: Any,
    job: Job,
    request: tuple[int, float, int, int],
    start_s: float,
    emit: Callable[[Record], None],
) -> None:
    index, arrival_s, n_prompt, n_output = request
    now = asyncio.get_running_loop().time
    due_s = start_s + arrival_s
    await asyncio.sleep(due_s - now())
    late_s = now() - due_s
    times_s: list[float] = []
    failure = ""
    ledger: dict[str, float] = {}
    try:
        async for response in stub.Generate(message, timeout=job.timeout_s):
            at_s = now() - due_s
            for token in response.tokens:
                if token.index != len(times_s):
                    failure = "TOKENS_OUT_OF_ORDER"
                times_s.append(at_s)
            if response.HasField("ledger"):
                ledger = {name: getattr(response.ledger, name) for name in _LEDGER}
    except grpc.aio.AioRpcError as error:
        failure = from_rpc_error(error).reason
    if not failure and len(times_s) != n_output:
        failure = "WRONG_LENGTH"
    emit(Record(index, arrival_s, late_s, n_prompt, n_output, tuple(times_s), failure, ledger))


def main() -> None:
    """The process: see the module's docstring."""
    job = Job(**json.loads(sys.stdin.readline()))

    async def start() -> float:
        print(json.dumps("ready"), flush=True)
        return float(json.loads(await asyncio.to_thread(sys.stdin.readline)))

    def emit(record: Record) -> None:
        print(json.dumps(record.to_json()), flush=True)

    asyncio.run(send_job(job, start, emit))


if __name__ == "__main__":
    main()
