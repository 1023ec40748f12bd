"""gRPC handlers that read and parse their request themselves, so that every request gets a proper
answer.

grpc itself answers malformed bytes with UNKNOWN and a class name, and waits for a message without a
timeout. Here a `CallGate` bounds the wait, and malformed bytes get INVALID_ARGUMENT with details.
Use these in place of a generated `add_…Servicer_to_server`:

    methods = {
        "Inspect": unary(InspectRequest, self._inspect),
        "Session": streams(SessionRequest, self._session),
    }
    handler = grpc.method_handlers_generic_handler("twolane.v1.WorkerService", methods)
    server.add_generic_rpc_handlers((handler,))

A handler is called with the message and the context (`streams`: with the context only, around which
it makes a `GrpcLink`). A `TwolaneError` that it raises becomes the call's status, any other
exception an `InternalError` by the listener's `twolane.security.gate.Gate`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from twolane.errors import InvalidRequestError, TwolaneError
from twolane.rpc import errors as rpc_errors
from twolane.rpc.call_gate import CallGate, CallGateConfig, Context

RequestT = TypeVar("RequestT", bound=Message)
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
StreamsHandler = Callable[[Context], Awaitable[None]]


def unary(
    request_type: type[RequestT],
    handler: Callable[[RequestT, Context], Awaitable[Message]],
    gate: CallGate | None = None,
) -> Handler:
    """A unary method. Without a `gate` it gets its own, with the default bounds."""

    async def answer(request: RequestT, context: Context) -> None:
        await context.write(await handler(request, context))

    return unary_stream(request_type, answer, gate)


def unary_stream(
    request_type: type[RequestT],
    handler: Callable[[RequestT, Context], Awaitable[None]],
    gate: CallGate | None = None,
    *,
    check: Callable[[Context], None] = lambda context: None,
) -> Handler:
    """A server-streaming method: `handler` writes the responses to the context. `check` may refuse
    a call before its message is read. `check` and `handler` count their own refusals; the gate
    counts all others. Without a `gate` it gets its own, with the default bounds.

    The method is declared to gRPC as streaming in both directions, so that the gate decides when
    the message is read.
    """

    gate = gate or CallGate(CallGateConfig())

    async def handle(requests: object, context: Context) -> None:
        is_counted = False
        try:
            async with gate.entered(context):
                is_counted = True
                check(context)
                is_counted = False
                raw = await gate.try_read(context)
                if raw is None:
                    raise InvalidRequestError("this call ended without a message")
                request = parse(request_type, raw)
                is_counted = True
                await handler(request, context)
        except TwolaneError as error:
            if not is_counted:
                gate.refused[error.reason.lower()] += 1
            await rpc_errors.end_call(context, error)
        except grpc.aio.InternalError as error:
            raise _if_lost(error) from error

    return grpc.stream_stream_rpc_method_handler(handle, response_serializer=_serialize)


def streams(request_type: type[Message], handler: StreamsHandler) -> Handler:
    """A bidirectional streaming method. Reading malformed bytes from the context, or from a link
    over it, raises `InvalidRequestError`; if the handler does not catch it, it becomes the stream's
    status."""

    def read(raw: bytes) -> Message:
        return parse(request_type, raw)

    async def handle(requests: object, context: Context) -> None:
        try:
            await handler(context)
        except TwolaneError as error:
            await rpc_errors.end_call(context, error)
        except grpc.aio.InternalError as error:
            raise _if_lost(error) from error

    return grpc.stream_stream_rpc_method_handler(
        handle,
        request_deserializer=read,
        response_serializer=_serialize,
    )


def parse(request_type: type[RequestT], raw: bytes) -> RequestT:
    """Parse a message. Raises `InvalidRequestError` if the bytes are not a message of that type."""
    try:
        return request_type.FromString(raw)
    except DecodeError as error:
        raise InvalidRequestError(
            f"these {len(raw)} bytes are not a {request_type.DESCRIPTOR.full_name}: {error}",
            metadata={"type": request_type.DESCRIPTOR.full_name, "value": str(len(raw))},
        ) from error


def _if_lost(error: grpc.aio.InternalError) -> BaseException:
    """A cancelled call if `error` is of a write to a client that has disconnected. A write during
    another one is a bug of ours: gRPC has cancelled nothing, and its client waits for an end."""
    return error if "TOO_MANY_OPERATIONS" in str(error) else asyncio.CancelledError()


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
