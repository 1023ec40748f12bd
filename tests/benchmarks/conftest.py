"""A door that answers as scripted: the other side of the load generator's end-to-end tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from twolane.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2


@dataclass
class ScriptedDoor(inference_pb2_grpc.InferenceServiceServicer):
    """Streams token after token. Every `refuse_every`-th request is refused. With `multiplexes`, a
    stream's answers come at once; `streams` counts them."""

    ttft_s: float = 0.01
    gap_s: float = 0.002
    refuse_every: int = 0
    drop_last_token: bool = False
    multiplexes: bool = False
    endpoint: str = ""
    requests: list[Any] = field(default_factory=list)
    streams: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def Generate(self, request: Any, context: Any) -> Iterator[Any]:
        with self._lock:  # each call has a thread of its own
            self.requests.append(request)
            nth = len(self.requests)
        if self.refuse_every and nth % self.refuse_every == 0:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        yield inference_pb2.GenerateResponse(request_id="1", seed=request.sampling.seed)
        n_tokens = request.sampling.max_tokens - self.drop_last_token
        for index in range(n_tokens):
            time.sleep(self.gap_s if index else self.ttft_s)
            yield inference_pb2.GenerateResponse(tokens=[inference_pb2.Token(index=index)])
        yield inference_pb2.GenerateResponse(
            finish_reason=sampling_pb2.FINISH_REASON_LENGTH,
            ledger=sampling_pb2.Ledger(prefill_s=self.ttft_s, transfer_bytes=1024, attempts=1),
        )

    def Multiplex(self, messages: Iterator[Any], context: Any) -> Iterator[Any]:
        if not self.multiplexes:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
        self.streams += 1
        for start in (start for message in messages for start in message.starts):
            whole = inference_pb2.GenerateResponse()
            for part in self.Generate(start.generate, context):
                whole.MergeFrom(part)
            part = inference_pb2.AnswerPart(answer=start.answer, response=whole)
            yield inference_pb2.MultiplexResponse(window_tokens=1000, parts=[part])

    def Cancel(self, request: Any, context: Any) -> Any:
        return inference_pb2.CancelResponse()

    def ListModels(self, request: Any, context: Any) -> Any:
        model = inference_pb2.Model(name="scripted", max_context_tokens=256, vocab_size=100)
        return inference_pb2.ListModelsResponse(models=[model])


@pytest.fixture
def open_door() -> Iterator[Callable[..., ScriptedDoor]]:
    """Starts doors, each on a port of its own, until the test ends."""
    servers: list[grpc.Server] = []

    def open_one(**script: Any) -> ScriptedDoor:
        door = ScriptedDoor(**script)
        server = grpc.server(ThreadPoolExecutor(max_workers=64))
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(door, server)
        door.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        servers.append(server)
        return door

    yield open_one
    for server in servers:
        server.stop(grace=None).wait()
