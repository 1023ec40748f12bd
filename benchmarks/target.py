"""One cluster to load, and what it tells about its model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc

from twolane.rpc.errors import from_rpc_error
from twolane.rpc.options import CHANNEL_OPTIONS
from twolane.v1 import inference_pb2, inference_pb2_grpc

_POLL_S = 0.05


class TargetError(RuntimeError):
    """The cluster does not answer, or does not serve exactly one model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`name` is for tables and results."""

    name: str
    endpoint: str
    vocab_size: int
    max_context_tokens: int


async def ask(name: str, endpoint: str, *, timeout_s: float = 10.0) -> Target:
    """What the cluster's model needs to be asked rightly; waits until it has one.

    Raises `TargetError`.
    """
    problem = "no model yet"
    try:
        async with asyncio.timeout(timeout_s):
            async with grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS) as channel:
                stub = inference_pb2_grpc.InferenceServiceStub(channel)
                while True:
                    listed = await stub.ListModels(
                        inference_pb2.ListModelsRequest(), wait_for_ready=True
                    )
                    if len(listed.models) == 1:
                        model = listed.models[0]
                        return Target(
                            name=name,
                            endpoint=endpoint,
                            vocab_size=model.vocab_size,
                            max_context_tokens=model.max_context_tokens,
                        )
                    problem = f"it serves {len(listed.models)} models, not one"
                    await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise TargetError(f"{name} at {endpoint} is not ready: {problem}") from error
    except grpc.aio.AioRpcError as error:
        raise TargetError(f"{name} at {endpoint}: {from_rpc_error(error).message}") from error
