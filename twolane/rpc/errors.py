"""Translates twolane's errors to gRPC statuses and back. No other code does that.

The status carries google.rpc details: ErrorInfo always (domain "twolane"), BadRequest with the
field for invalid requests, RetryInfo for overload.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import grpc
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from twolane import errors

DOMAIN = "twolane"

_CODE_OF: dict[type[errors.TwolaneError], int] = {
    errors.InvalidRequestError: code_pb2.INVALID_ARGUMENT,
    errors.InvalidParameterError: code_pb2.INVALID_ARGUMENT,
    errors.UnauthenticatedError: code_pb2.UNAUTHENTICATED,
    errors.PermissionDeniedError: code_pb2.PERMISSION_DENIED,
    errors.DuplicateRequestError: code_pb2.ALREADY_EXISTS,
    errors.PreconditionError: code_pb2.FAILED_PRECONDITION,
    errors.UnknownModelError: code_pb2.NOT_FOUND,
    errors.UnknownSubmissionError: code_pb2.NOT_FOUND,
    errors.TakenOverError: code_pb2.ABORTED,
    errors.OverloadedError: code_pb2.RESOURCE_EXHAUSTED,
    errors.QuotaError: code_pb2.RESOURCE_EXHAUSTED,
    errors.DeadlineError: code_pb2.DEADLINE_EXCEEDED,
    errors.CancelledError: code_pb2.CANCELLED,
    errors.UnavailableError: code_pb2.UNAVAILABLE,
    errors.UnimplementedError: code_pb2.UNIMPLEMENTED,
    errors.InternalError: code_pb2.INTERNAL,
}


def to_status(error: errors.TwolaneError) -> status_pb2.Status:
    """The google.rpc.Status of a twolane error."""
    status = status_pb2.Status(code=_CODE_OF[type(error)], message=error.message)
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    )
    if isinstance(error, errors.InvalidRequestError) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, errors.OverloadedError):
        delay = Duration()
        delay.FromMilliseconds(int(error.retry_after_s * 1000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


async def end_call(context: grpc.aio.ServicerContext[Any, Any], error: errors.TwolaneError) -> None:
    """End the call of `context` with the status of `error`. The handler must return then.

    If the client has already disconnected, the call counts as cancelled, not as failed.
    """
    try:
        await context.abort_with_status(rpc_status.to_status(to_status(error)))
    except grpc.aio.InternalError as lost:
        raise asyncio.CancelledError from lost
    except grpc.aio.AbortError as aborted:
        # gRPC keeps `aborted` with the call, and raises it again when the handler returns. With a
        # traceback, which has the context and so the call, only the garbage collector would free
        # the call. A request that keeps its error is in the same way in its traceback.
        aborted.__traceback__ = aborted.__context__ = error.__traceback__ = None


def from_rpc_error(error: grpc.RpcError) -> errors.TwolaneError:
    """The twolane error of a failed call, sync or aio."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return errors.InternalError(str(error))
    code = error.code()
    text = error.details() or code.name
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    for detail in _details(cast(grpc.Call, error)):
        for message in (info, bad_request, retry):
            if detail.Is(message.DESCRIPTOR):
                detail.Unpack(message)
    metadata = dict(info.metadata)
    if code is grpc.StatusCode.CANCELLED and any(sign in text for sign in _CANCELLED_HERE):
        return errors.CancelledError(text, metadata=metadata)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
        is_quota = info.reason == errors.QuotaError.reason
        full = errors.QuotaError if is_quota else errors.OverloadedError
        return full(text, retry_after_s=retry_after_s, metadata=metadata)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        field = bad_request.field_violations[0].field if bad_request.field_violations else ""
        return errors.InvalidRequestError(text, field=field, metadata=metadata)
    return _ERROR_OF_REASON.get(info.reason, _ERROR_OF[code])(text, metadata=metadata)


def is_of_router(error: grpc.RpcError) -> bool:
    """Whether a router has said this, and not gRPC or a proxy of a connection."""
    info = error_details_pb2.ErrorInfo()
    return any(
        detail.Unpack(info) and info.domain == DOMAIN
        for detail in _details(cast(grpc.Call, error))
        if detail.Is(info.DESCRIPTOR)
    )


def _details(call: grpc.Call) -> Sequence[any_pb2.Any]:
    """The google.rpc details of a failed call, sync or aio; empty if the status was replaced on the
    way: by gRPC, if the trailers were too large, or by a proxy."""
    try:
        status = rpc_status.from_call(call)
    except ValueError:  # the details have a code other than the status
        return ()
    return () if status is None else status.details


# Errors that share a gRPC status with another one, or with gRPC itself, by their reason.
_ERROR_OF_REASON: dict[str, type[errors.TwolaneError]] = {
    kind.reason: kind
    for kind in (errors.UnknownSubmissionError, errors.TakenOverError, errors.CancelledError)
}

# What gRPC says, alone or within more words, of calls that this process has cancelled: nothing else
# tells them from those that the other end has cancelled.
_CANCELLED_HERE = ("Channel closed!", "Locally cancelled by application!")

# Every status that a failed call can have, except RESOURCE_EXHAUSTED and INVALID_ARGUMENT, whose
# errors have fields. Statuses that no process of ours sends come from gRPC itself or from a proxy.
# So does a CANCELLED without a reason: gRPC ends calls with it that came as their server stopped,
# and that no handler has seen. Those that were cancelled here do not come so far.
_ERROR_OF: dict[grpc.StatusCode, type[errors.TwolaneError]] = {
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDeniedError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.ALREADY_EXISTS: errors.DuplicateRequestError,
    grpc.StatusCode.NOT_FOUND: errors.UnknownModelError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
    grpc.StatusCode.CANCELLED: errors.UnavailableError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.ABORTED: errors.UnavailableError,
    grpc.StatusCode.UNIMPLEMENTED: errors.UnimplementedError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.PreconditionError,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidRequestError,
    grpc.StatusCode.UNKNOWN: errors.InternalError,
    grpc.StatusCode.INTERNAL: errors.InternalError,
    grpc.StatusCode.DATA_LOSS: errors.InternalError,
}
