"""One server under load, or several that share the load, and what they report of their model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc

from benchmarks.load.caller import SDK, is_http
from benchmarks.load.openai_caller import OpenAiCaller
from twolane.rpc.channel_options import CHANNEL_OPTIONS
from twolane.rpc.errors import from_rpc_error
from twolane.v1 import inference_pb2, inference_pb2_grpc

_POLL_S = 0.05


class TargetError(RuntimeError):
    """The server does not answer, or does not serve exactly one model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`name` is for tables and results. Requests go to the endpoints in turn, each of which is
    HOST:PORT for gRPC or http://HOST:PORT for an OpenAI-style server."""

    name: str
    endpoints: tuple[str, ...]
    model: str = ""
    vocab_size: int
    max_context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The user's figures for a model, which override the server's. 0: ask the server."""

    vocab_size: int = 0
    max_context_tokens: int = 0


async def ask(
    name: str, endpoints: Sequence[str], *, told: Told | None = None, timeout_s: float = 10.0
) -> Target:
    """The model's limits, for valid requests; waits until every endpoint has it. Servers of one
    target are assumed to serve the same model.

    Raises `TargetError`.
    """
    told = told or Told()
    problem: Exception = TargetError("no answer yet")
    try:
        async with asyncio.timeout(timeout_s):
            for endpoint in endpoints:
                while True:
                    try:
                        model = await _only_model(endpoint, timeout_s)
                        break
                    except (aiohttp.ClientError, TargetError, ValueError) as error:
                        problem = error
                    await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise TargetError(f"{name} at {endpoint} is not ready: {problem}") from error
    except grpc.aio.AioRpcError as error:
        raise TargetError(f"{name} at {endpoint}: {from_rpc_error(error).message}") from error
    facts = {
        "vocab_size": told.vocab_size or int(model.get("vocab_size") or 0),
        "max_context_tokens": told.max_context_tokens or int(model.get("max_model_len") or 0),
    }
    for fact, value in facts.items():
        if not value:
            raise TargetError(f"{name} at {endpoint} does not tell its {fact}: say it")
    return Target(name=name, endpoints=tuple(endpoints), model=str(model["id"]), **facts)


async def _only_model(endpoint: str, timeout_s: float) -> dict[str, Any]:
    """The only entry of /v1/models. Raises what says "not yet"."""
    models = await (_listed_http if is_http(endpoint) else _listed_grpc)(endpoint, timeout_s)
    if len(models) != 1:
        raise TargetError(f"it serves {len(models)} models, not one")
    return models[0]


async def _listed_http(endpoint: str, timeout_s: float) -> list[dict[str, Any]]:
    async with OpenAiCaller(endpoint, model="") as caller:
        return await caller.models(timeout_s)


async def _listed_grpc(endpoint: str, timeout_s: float) -> list[dict[str, Any]]:
    address = endpoint.removeprefix(SDK)
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.ListModelsRequest()
        listed = await stub.ListModels(request, wait_for_ready=True, timeout=timeout_s)
    return [
        {"id": m.name, "vocab_size": m.vocab_size, "max_model_len": m.max_context_tokens}
        for m in listed.models
    ]
