"""gRPC handlers that parse their request themselves, so that malformed bytes get an answer.

grpc answers bytes that its deserializer refuses with UNKNOWN and a class name. Here the handler is
given the raw bytes, and answers INVALID_ARGUMENT with details.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from twolane.errors import InvalidParameterError, InvalidRequestError, TwolaneError
from twolane.rpc import errors as rpc_errors

RequestT = TypeVar("RequestT", bound=Message)
Context = Any  # grpc.aio.ServicerContext; the stubs leave half of it out
UnaryHandler = Callable[[Any, Context], Awaitable[Message]]
StreamHandler = Callable[[Any, Context], Awaitable[None]]


def unary(
    request_type: type[Message], handler: UnaryHandler, max_bytes: int
) -> grpc.RpcMethodHandler[bytes, Any]:
    """One message in, one out. `handler` raises `TwolaneError`s; they become statuses."""

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
    request_type: type[Message], handler: StreamHandler, max_bytes: int
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
