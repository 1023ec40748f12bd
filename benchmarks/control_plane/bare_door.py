"""The lower bound of a router: a gRPC server that streams made-up tokens.

A client measures the cost of gRPC itself here; what it measures beyond that at a router is the
router's own cost. Started by `benchmarks.control_plane.router_process`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc

from twolane.rpc.channel_options import DOOR_SERVER_OPTIONS
from twolane.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2


class BareDoor(inference_pb2_grpc.InferenceServiceServicer):
    """Sends the first token at once, then one every `step_s`; 0: as fast as the client reads."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield inference_pb2.GenerateResponse(request_id="0", seed=request.sampling.seed)
        for index in range(request.sampling.max_tokens):
            if index:
                await asyncio.sleep(self._step_s)
            yield inference_pb2.GenerateResponse(
                tokens=[inference_pb2.Token(index=index, token_id=7)], text="token"
            )
        yield inference_pb2.GenerateResponse(
            finish_reason=sampling_pb2.FINISH_REASON_LENGTH,
            ledger=sampling_pb2.Ledger(attempts=1),
        )

    async def ListModels(self, request: Any, context: Any) -> Any:
        model = inference_pb2.Model(name="bare", max_context_tokens=4_096, vocab_size=256)
        return inference_pb2.ListModelsResponse(models=[model])


async def serve(step_s: float) -> None:
    """Print the endpoint, and serve until standard input closes."""
    server = grpc.aio.server(options=DOOR_SERVER_OPTIONS)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(BareDoor(step_s), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"serves at 127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)  # exit with the parent process
    await server.stop(grace=None)


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
