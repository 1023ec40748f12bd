"""gRPC handlers that parse their request themselves, so that malformed bytes get an answer.

grpc answers bytes that its deserializer refuses with UNKNOWN and a class name. Here the handler is
given the raw bytes, and answers INVALID_ARGUMENT with details. In place of a generated
`add_…Servicer_to_server`:

    methods = {
        "Inspect": unary(InspectRequest, self._inspect),
        "Session": streams(SessionRequest, self._session),
    }
    handler = grpc.method_handlers_generic_handler("twolane.v1.WorkerService", methods)
    server.add_generic_rpc_handlers((handler,))

A handler is called with the message (`streams`: with nothing but the context, of which it makes a
`GrpcLink`) and raises `TwolaneError`s, which become statuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from twolane.errors import InvalidParameterError, InvalidRequestError, TwolaneError
from twolane.rpc import errors as rpc_errors
from twolane.rpc.options import MAX_MESSAGE_BYTES

RequestT = TypeVar("RequestT", bound=Message)
Context = Any  # grpc.aio.ServicerContext; the stubs leave half of it out
UnaryHandler = Callable[[Any, Context], Awaitable[Message]]
StreamHandler = Callable[[Any, Context], Awaitable[None]]
StreamsHandler = Callable[[Context], Awaitable[None]]


def unary(
    request_type: type[Message], handler: UnaryHandler, max_bytes: int = MAX_MESSAGE_BYTES
) -> grpc.RpcMethodHandler[bytes, Any]:
    """One message in, one out."""

    async def handle(raw: bytes, context: Context) -> Message:
        try:
            return await handler(parse(request_type, raw, max_bytes), context)
        except TwolaneError as error:
            await rpc_errors.abort(context, error)

    return grpc.unary_unary_rpc_method_handler(
        handle,
        response_serializer=_serialize,
    )


def unary_stream(
    request_type: type[Message], handler: StreamHandler, max_bytes: int = MAX_MESSAGE_BYTES
) -> grpc.RpcMethodHandler[bytes, Any]:
    """One message in, many out, written by `handler` to the context."""

    async def handle(raw: bytes, context: Context) -> None:
        try:
            await handler(parse(request_type, raw, max_bytes), context)
        except TwolaneError as error:
            await rpc_errors.abort(context, error)

    return grpc.unary_stream_rpc_method_handler(
        handle,
        response_serializer=_serialize,
    )


def streams(
    request_type: type[Message], handler: StreamsHandler, max_bytes: int = MAX_MESSAGE_BYTES
) -> grpc.RpcMethodHandler[Any, Any]:
    """Many in, many out. Reading malformed bytes from the context (or from a link over it) raises
    `InvalidRequestError`; a handler that lets it pass ends the stream with that status."""

    def read(raw: bytes) -> Message:
        return parse(request_type, raw, max_bytes)

    async def handle(requests: object, context: Context) -> None:
        try:
            await handler(context)
        except TwolaneError as error:
            await rpc_errors.abort(context, error)

    return grpc.stream_stream_rpc_method_handler(
        handle,
        request_deserializer=read,
        response_serializer=_serialize,
    )


def parse(request_type: type[RequestT], raw: bytes, max_bytes: int) -> RequestT:
    """Raises `InvalidRequestError`: too large, or not a message of that type."""
    if len(raw) > max_bytes:
        raise InvalidParameterError("message size in bytes", len(raw), f"at most {max_bytes}")
    try:
        return request_type.FromString(raw)
    except DecodeError as error:
        raise InvalidRequestError(
            f"these {len(raw)} bytes are no {request_type.DESCRIPTOR.full_name}: {error}",
            metadata={"type": request_type.DESCRIPTOR.full_name, "value": str(len(raw))},
        ) from error


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
