"""Every error of the tree travels through a real gRPC call and arrives as itself."""

from typing import Any

import grpc
import pytest

from twolane import errors
from twolane.rpc.errors import end_call, from_rpc_error, to_status

ERRORS = [
    errors.InvalidRequestError("prompt is empty", field="prompt"),
    errors.InvalidParameterError("top_p", 3.0, "above 0, up to 1"),
    errors.UnauthenticatedError("no key"),
    errors.PermissionDeniedError("not from here"),
    errors.DuplicateRequestError("request id r1 is in use"),
    errors.PreconditionError("it was started again"),
    errors.UnknownModelError("no such model"),
    errors.UnknownSubmissionError("nothing of it is left"),
    errors.TakenOverError("another router has it"),
    errors.OverloadedError("queue is full", retry_after_s=1.25, metadata={"queued": "64"}),
    errors.QuotaError("10 a second", retry_after_s=0.5, metadata={"quota": "requests"}),
    errors.DeadlineError("too late"),
    errors.CancelledError("cancelled"),
    errors.UnavailableError("no worker"),
    errors.UnimplementedError("n above 1"),
    errors.InternalError("logits are not finite"),
]

STATUSES: dict[str, type[errors.TwolaneError]] = {
    "ABORTED": errors.UnavailableError,
    "ALREADY_EXISTS": errors.DuplicateRequestError,
    "CANCELLED": errors.UnavailableError,
    "DATA_LOSS": errors.InternalError,
    "DEADLINE_EXCEEDED": errors.DeadlineError,
    "FAILED_PRECONDITION": errors.PreconditionError,
    "INTERNAL": errors.InternalError,
    "INVALID_ARGUMENT": errors.InvalidRequestError,
    "NOT_FOUND": errors.UnknownModelError,
    "OUT_OF_RANGE": errors.InvalidRequestError,
    "PERMISSION_DENIED": errors.PermissionDeniedError,
    "RESOURCE_EXHAUSTED": errors.OverloadedError,
    "UNAUTHENTICATED": errors.UnauthenticatedError,
    "UNAVAILABLE": errors.UnavailableError,
    "UNIMPLEMENTED": errors.UnimplementedError,
    "UNKNOWN": errors.InternalError,
}


def test_every_error_and_every_status_is_listed_here() -> None:
    tree = set(errors.TwolaneError.__subclasses__())
    tree |= {kind for parent in tree for kind in parent.__subclasses__()}
    tree = {kind for kind in tree if kind.__module__ == "twolane.errors"}  # not a command's own
    assert {type(error) for error in ERRORS} == tree
    assert {*STATUSES, "OK"} == {code.name for code in grpc.StatusCode}


@pytest.mark.parametrize("name", STATUSES)
def test_a_bare_status_becomes_an_error_of_the_tree(name: str) -> None:
    nothing = grpc.aio.Metadata()
    status = grpc.aio.AioRpcError(grpc.StatusCode[name], nothing, nothing, details="why")
    error = from_rpc_error(status)
    assert type(error) is STATUSES[name]
    assert str(error) == "why"


def test_details_of_another_code_than_the_calls_are_left_out() -> None:
    """As gRPC leaves them when it ends a call itself: the trailers were too large."""
    nothing = grpc.aio.Metadata()
    details = to_status(errors.UnknownModelError("no such model")).SerializeToString()
    trailers = grpc.aio.Metadata(("grpc-status-details-bin", details))
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    status = grpc.aio.AioRpcError(code, nothing, trailers, details="larger than limit")
    error = from_rpc_error(status)
    assert type(error) is errors.OverloadedError
    assert str(error) == "larger than limit"


@pytest.mark.parametrize("text", ["x", "é", "世", "👍"])
async def test_error_that_says_much_fits_into_the_trailers(text: str) -> None:
    model = errors.UnknownModelError(text * 5000, metadata={"model": text * 5000})
    assert type(await arrives(model)) is errors.UnknownModelError
    field = errors.InvalidParameterError("role", text * 5000, text * 5000)
    assert isinstance(await arrives(field), errors.InvalidRequestError)


async def arrives(sent: errors.TwolaneError) -> errors.TwolaneError:
    """Always: what is between gRPC's two bounds is refused at random."""
    for _ in range(4):
        got = from_rpc_error(await failed_call(sent))
        assert str(got) == str(sent)
    return got


@pytest.mark.parametrize("sent", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_error_arrives_as_itself(sent: errors.TwolaneError) -> None:
    got = from_rpc_error(await failed_call(sent))
    assert isinstance(sent, type(got))
    assert str(got) == str(sent)
    assert got.metadata == sent.metadata
    if isinstance(sent, errors.OverloadedError):
        assert isinstance(got, errors.OverloadedError)
        assert got.retry_after_s == sent.retry_after_s
    if isinstance(sent, errors.InvalidRequestError):
        assert isinstance(got, errors.InvalidRequestError)
        assert got.field == sent.field


async def test_an_unreachable_server_is_unavailable() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel)
    assert isinstance(from_rpc_error(caught.value), errors.UnavailableError)


async def call(channel: grpc.aio.Channel) -> None:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/t.T/Call")
    await method(b"")


async def failed_call(error: errors.TwolaneError) -> grpc.RpcError:
    async def handler(request: bytes, context: Any) -> bytes:
        await end_call(context, error)
        return b""

    server = grpc.aio.server()
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(handler)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("t.T", {"Call": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel)
            return caught.value
    finally:
        await server.stop(None)
