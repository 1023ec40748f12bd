"""A gRPC server that refuses everything: the cost of a flood of refusals in gRPC alone.

Started by `benchmarks.cluster.overload`. Prints its endpoint; exits when its standard input closes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

from twolane.errors import OverloadedError
from twolane.rpc import errors as rpc_errors
from twolane.rpc.call_gate import Context
from twolane.rpc.channel_options import DOOR_SERVER_OPTIONS


async def _refuse(requests: object, context: Context) -> None:
    await rpc_errors.end_call(context, OverloadedError("refused", retry_after_s=1.0))


async def serve() -> None:
    server = grpc.aio.server(options=DOOR_SERVER_OPTIONS)
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(_refuse)
    services = grpc.method_handlers_generic_handler(
        "twolane.v1.InferenceService", {"Generate": handler}
    )
    server.add_generic_rpc_handlers((services,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"serves at 127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)  # exit with the parent process
    await server.stop(grace=None)


if __name__ == "__main__":
    asyncio.run(serve())
