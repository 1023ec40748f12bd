"""Sends ten requests a second, from a separate process, and prints each outcome as a line of JSON.

Started by `benchmarks.cluster.overload` with an endpoint; exits when its standard input closes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from benchmarks.cluster.flood import Kind, message
from twolane.rpc.channel_options import CHANNEL_OPTIONS
from twolane.v1 import inference_pb2_grpc

PRIORITIES = (100, 0, -10)
EVERY_S = 0.1
TIMEOUT_S = 60.0
TOKENS = 16


@dataclass(frozen=True, slots=True)
class Probe:
    """One request. `at_s` is when it was sent, on the clock that all processes share."""

    at_s: float
    priority: int
    code: str
    took_s: float
    first_s: float | None  # to the first token
    was_queued: bool  # if it failed: whether it had been admitted before
    has_details: bool  # ErrorInfo, and RetryInfo if it was refused
    late_s: float = 0.0  # how late it was sent: this process waited for a core itself


async def _ask(stub: Any, priority: int, late_s: float) -> Probe:
    began, first_s, was_queued, code, has_details = time.monotonic(), None, False, "OK", True
    try:
        request = message(Kind(priority), TOKENS)
        async for response in stub.Generate(request, timeout=TIMEOUT_S):
            was_queued = True
            if first_s is None and response.tokens:
                first_s = time.monotonic() - began
    except grpc.aio.AioRpcError as error:
        code, has_details = error.code().name, _has_details(error)
    took_s = time.monotonic() - began
    return Probe(began, priority, code, took_s, first_s, was_queued, has_details, late_s)


def _has_details(error: grpc.aio.AioRpcError) -> bool:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    if status is None:
        return False
    wanted = [error_details_pb2.ErrorInfo.DESCRIPTOR.full_name]
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        wanted.append(error_details_pb2.RetryInfo.DESCRIPTOR.full_name)
    found = {detail.type_url.rpartition("/")[2] for detail in status.details}
    return found >= set(wanted)


async def probe(endpoint: str) -> None:
    async with grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS) as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)

        async def one(priority: int, late_s: float) -> None:
            print(json.dumps(asdict(await _ask(stub, priority, late_s))), flush=True)

        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        async with asyncio.TaskGroup() as tasks:
            late_s = 0.0
            for number in count():
                if ended.done():
                    break
                tasks.create_task(one(PRIORITIES[number % len(PRIORITIES)], late_s))
                due_s = time.monotonic() + EVERY_S
                await asyncio.sleep(EVERY_S)
                late_s = time.monotonic() - due_s


if __name__ == "__main__":
    asyncio.run(probe(sys.argv[1]))
