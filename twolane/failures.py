"""A failed call, as the caller should hear of it."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from twolane.config import ENDPOINT_VARIABLE, SOCKET_NAME
from twolane.errors import (
    DeadlineError,
    InternalError,
    InvalidParameterError,
    InvalidRequestError,
    OverloadedError,
    TwolaneError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from twolane.rpc.errors import from_rpc_error


@dataclass(frozen=True, slots=True)
class TlsUse:
    """The files that a client used: the server's authority and its own certificate, or empty."""

    ca: str = ""
    cert: str = ""


def explain(
    error: grpc.RpcError,
    *,
    endpoint: str,
    timeout_s: float | None,
    n_tokens: int | None = None,
    tls: TlsUse | None = None,
) -> TwolaneError:
    """The error of our tree; what gRPC itself says in a few words is said in full here.

    `n_tokens` is how much of an answer was here already; None if it had not begun.
    """
    ours = from_rpc_error(error)
    said_by_server = bool(ours.metadata) or "grpc-status-details-bin" in _trailers(error)
    if said_by_server:
        return ours
    if isinstance(ours, UnavailableError) and n_tokens is not None:
        tokens = "1 token" if n_tokens == 1 else f"{n_tokens} tokens"
        return UnavailableError(
            f"the router of {endpoint} was lost after {tokens}; send the request again",
            metadata={"endpoint": endpoint, "tokens": str(n_tokens)},
        )
    if isinstance(ours, UnavailableError) and (text := _handshake(ours.message, endpoint, tls)):
        return UnauthenticatedError(text, metadata={"endpoint": endpoint})
    # "failed to connect to all addresses; last error: …: Connection refused", or
    # "errors resolving …: [field:hostname lookup error:…: Domain name not found]"
    why = ours.message.removesuffix("]").rpartition(": ")[2]
    if f"/{SOCKET_NAME}" in endpoint and "Method not found" in why:
        return InvalidParameterError(
            "endpoint",
            endpoint,
            "HOST:PORT here, as `twolane up` shows it: this socket is for operators, with status "
            "and drain alone",
        )
    if isinstance(ours, UnavailableError | UnimplementedError) and _is_foreign(ours.message):
        return UnavailableError(
            f"something at {endpoint} is not a twolane cluster ({why})",
            metadata={"endpoint": endpoint},
        )
    if isinstance(ours, UnavailableError) and not _is_aborted(error):
        return unreachable(endpoint, why)
    if (
        isinstance(ours, OverloadedError) and "larger than max" in ours.message
    ):  # and always will be
        is_answer = ours.message.startswith("CLIENT: Received")
        return (InternalError if is_answer else InvalidRequestError)(ours.message)
    if isinstance(ours, DeadlineError) and timeout_s is not None:
        return DeadlineError(
            f"no complete answer from {endpoint} within {timeout_s:g} s",
            metadata={"timeout_s": f"{timeout_s:g}"},
        )
    return ours


def _handshake(said: str, endpoint: str, tls: TlsUse | None) -> str:
    """Why a connection to `endpoint` was not made, in words, if TLS was the reason; else empty."""
    tls = tls or TlsUse()
    for sign, text in (
        ("certificate has expired", "has expired: renew it (`twolane certs renew`)"),
        ("certificate is not yet valid", "is not valid yet: compare the clocks"),
        ("CERTIFICATE_VERIFY_FAILED", f"is not signed by --ca {tls.ca}"),
        (
            "Hostname Verification Check failed",
            f"is not for {endpoint.rpartition(':')[0]}: issue it with that --host",
        ),
    ):
        if sign in said:
            return f"the certificate of the server at {endpoint} {text}"
    if "WRONG_VERSION_NUMBER" in said:
        return f"the server at {endpoint} speaks plain text, not TLS: leave --ca out"
    if "failed to connect" not in said or "Socket closed" not in said:
        return ""
    if not tls.ca:
        return (
            f"the server at {endpoint} closed the connection at once: it may want TLS (--ca FILE, "
            "in Python ClientConfig(ca=…))"
        )
    if not tls.cert:
        return f"the server at {endpoint} wants a client's certificate (--cert FILE --key FILE)"
    return (
        f"the server at {endpoint} refused the certificate {tls.cert}: it has expired, or another "
        "authority has signed it; the server's log says which"
    )


def unreachable(endpoint: str, why: str) -> UnavailableError:
    """Nobody answers there, and what to do about it."""
    return UnavailableError(
        f"no cluster answers at {endpoint} ({why}). Start one with `twolane up`, or name another "
        f"with --endpoint (in Python endpoint=…) or {ENDPOINT_VARIABLE}",
        metadata={"endpoint": endpoint},
    )


def _is_foreign(text: str) -> bool:
    """A peer that speaks HTTP/1, or HTTP/2 without gRPC, or gRPC without our services."""
    signs = ("Failed parsing HTTP/2", "http2 header with status", "http1.x", "Method not found")
    return any(sign in text for sign in signs)


def _is_aborted(error: grpc.RpcError) -> bool:
    """By a proxy, which somebody has reached."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.ABORTED


def _trailers(error: grpc.RpcError) -> set[str]:
    if not isinstance(error, grpc.aio.AioRpcError):
        return set()
    return {key for key, _ in error.trailing_metadata() or ()}
