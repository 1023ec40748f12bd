"""Calls twolane's own door: a call for each request, or all on one stream as the SDK does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from benchmarks.load.caller import Answer, now_s
from twolane.calls.multiplexed import Multiplexer
from twolane.calls.trace_headers import TraceMetadata
from twolane.rpc.channel_options import CHANNEL_OPTIONS
from twolane.rpc.errors import from_rpc_error
from twolane.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2

_CONNECT_S = 30.0
_LEDGER = (
    "queued_s", "prefill_wait_s", "prefill_s", "transfer_s", "decode_wait_s", "decode_s", "ttft_s",
    "cached_tokens", "transfer_pages", "transfer_bytes", "attempts",
)  # fmt: skip


class GrpcCaller:
    """Implements `benchmarks.load.caller.Caller`: all requests share one channel."""

    def __init__(self, endpoint: str, *, is_multiplexed: bool = False) -> None:
        self._endpoint = endpoint
        self._is_multiplexed = is_multiplexed
        self._multiplexer: Multiplexer | None = None

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._endpoint, options=CHANNEL_OPTIONS)
        await asyncio.wait_for(self._channel.channel_ready(), _CONNECT_S)
        self._stub: Any = inference_pb2_grpc.InferenceServiceStub(self._channel)
        if self._is_multiplexed:
            self._multiplexer = Multiplexer(self._stub.Multiplex, self._generate)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._multiplexer is not None:
            await self._multiplexer.close()
        await self._channel.close()

    def build(self, token_ids: Sequence[int], n_output: int, seed: int) -> Any:
        return inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=token_ids),
            sampling=sampling_pb2.SamplingParams(
                max_tokens=n_output, temperature=0.0, seed=seed, ignore_eos=True
            ),
        )

    async def call(self, message: Any, answer: Answer, timeout_s: float) -> None:
        try:
            start = self._generate if self._multiplexer is None else self._multiplexer.start
            async for response in start(message, timeout_s):
                at_s = now_s()
                for nth, token in enumerate(response.tokens, len(answer.times_s)):
                    if token.index != nth:
                        answer.failure = "TOKENS_OUT_OF_ORDER"
                answer.note(len(response.tokens), at_s)
                if response.HasField("ledger"):
                    answer.ledger = {name: getattr(response.ledger, name) for name in _LEDGER}
        except grpc.aio.AioRpcError as error:
            answer.failure = from_rpc_error(error).reason

    def _generate(self, message: Any, timeout_s: float | None, trace: TraceMetadata = ()) -> Any:
        return self._stub.Generate(message, timeout=timeout_s, metadata=trace)
