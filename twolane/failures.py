"""Translates a failed gRPC call into an error with a helpful text."""

from __future__ import annotations

import re
import socket
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
from twolane.rpc.errors import from_rpc_error, is_of_router


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
    """The twolane error of a failed call. Where gRPC's own text is terse, the error says more.

    `n_tokens` is the number of tokens received before the failure; None if the answer had not
    begun.
    """
    ours = from_rpc_error(error)
    if is_of_router(error):
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
            "HOST:PORT here, as `twolane up` shows it: this socket is for operators' commands, and "
            "answers no prompts",
        )
    if isinstance(ours, UnavailableError | UnimplementedError) and _is_foreign(ours.message):
        if "http1.x" in why:
            why = "it speaks HTTP: if it is a cluster's HTTP port, name its port for gRPC instead"
        return UnavailableError(
            f"something at {endpoint} is not a twolane cluster ({why})",
            metadata={"endpoint": endpoint},
        )
    if isinstance(ours, UnavailableError) and "refused" in why and _takes_connections(endpoint):
        why = "no answer in time"
    if isinstance(ours, UnavailableError) and any(sign in why for sign in _SILENCE):
        return UnavailableError(
            f"what listens at {endpoint} accepts connections but does not answer ({why}): the "
            "router hangs, or it is no router",
            metadata={"endpoint": endpoint},
        )
    if isinstance(ours, UnavailableError) and not _is_aborted(error):
        return unreachable(endpoint, why)
    if isinstance(ours, OverloadedError) and "larger than max" in ours.message:
        return _too_large(ours.message)
    if isinstance(ours, DeadlineError) and timeout_s is not None:
        return DeadlineError(
            f"no complete answer from {endpoint} within {timeout_s:g} s",
            metadata={"timeout_s": f"{timeout_s:g}"},
        )
    return ours


_SIZES = re.compile(r"\((\d+) vs\. (\d+)\)")
# gRPC's words of a peer whose machine takes connections, and that sends nothing.
_SILENCE = ("before receiving SETTINGS", "no answer in time")
_LOCAL_S = 0.2  # for a connection within this machine


def _too_large(said: str) -> TwolaneError:
    """A message that never fits. `said` is like "SERVER: Received message larger than max (8 vs.
    4)"."""
    sizes = _SIZES.search(said)
    if said.startswith("CLIENT: Received") or sizes is None:  # an answer
        return InternalError(said)
    size, most = map(int, sizes.groups())
    return InvalidRequestError(
        f"the request has {size:,} bytes; a message may have at most {most:,}: shorten its prompt",
        field="prompt",
        metadata={"value": str(size), "bound": str(most)},
    )


def _handshake(said: str, endpoint: str, tls: TlsUse | None) -> str:
    """Why the connection to `endpoint` failed, if TLS was the reason; else empty."""
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
            f"the server at {endpoint} closed the connection at once: it may require TLS "
            "(--ca FILE, in Python ClientConfig(ca=…))"
        )
    if not tls.cert:
        return f"the server at {endpoint} requires a client certificate (--cert FILE --key FILE)"
    return (
        f"the server at {endpoint} refused the certificate {tls.cert}: it has expired, or "
        "another authority issued it; the server's log has the reason"
    )


def _takes_connections(endpoint: str) -> bool:
    """Whether a process listens at this port of this machine. gRPC tells of the last address alone:
    where 127.0.0.1 takes connections and is silent, that ::1 of `localhost` refuses them."""
    host, _, port = endpoint.rpartition(":")
    if host != "localhost":
        return False
    try:
        socket.create_connection((host, int(port)), timeout=_LOCAL_S).close()
    except OSError:
        return False
    return True


def unreachable(endpoint: str, why: str) -> UnavailableError:
    """The error for an endpoint without an answer, with advice."""
    return UnavailableError(
        f"no cluster answers at {endpoint} ({why}). Start one with `twolane up`, or name another "
        f"with --endpoint (in Python endpoint=…) or {ENDPOINT_VARIABLE}",
        metadata={"endpoint": endpoint},
    )


def _is_foreign(text: str) -> bool:
    """Whether the peer speaks HTTP/1, or HTTP/2 without gRPC, or gRPC without our services."""
    signs = ("Failed parsing HTTP/2", "http2 header with status", "http1.x", "Method not found")
    return any(sign in text for sign in signs)


def _is_aborted(error: grpc.RpcError) -> bool:
    """Whether a proxy on the way aborted the call."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.ABORTED
