"""What gRPC or a proxy says of a failed call, in our words."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.twolane.conftest import Door
from twolane.admin import AdminClient
from twolane.client import Client
from twolane.errors import (
    CancelledError,
    InternalError,
    InvalidParameterError,
    InvalidRequestError,
    TwolaneError,
    UnavailableError,
)
from twolane.failures import explain
from twolane.v1 import admin_pb2

CODE = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "said", "kind", "text"),
    [
        (
            CODE.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (9000 vs. 4)",
            InvalidRequestError,
            "the request has 9,000 bytes; a message may have at most 4: shorten its prompt",
        ),
        (
            CODE.RESOURCE_EXHAUSTED,
            "CLIENT: Sent message larger than max (9 vs. 4)",
            InvalidRequestError,
            "the request has 9 bytes",
        ),
        (
            CODE.RESOURCE_EXHAUSTED,
            "CLIENT: Received message larger than max (9 vs. 4)",
            InternalError,
            "larger than max",
        ),
        (CODE.ABORTED, "too many retries", UnavailableError, "^too many retries$"),
        (CODE.UNAVAILABLE, "Connection refused", UnavailableError, "no cluster answers at here:1"),
        (CODE.CANCELLED, "CANCELLED", UnavailableError, "no cluster answers at here:1"),
        (
            CODE.UNAVAILABLE,
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
            "connection attempt timed out before receiving SETTINGS frame",
            UnavailableError,
            "^what listens at here:1 accepts connections but does not answer",
        ),
        (CODE.CANCELLED, "Channel closed!", CancelledError, "^Channel closed!$"),
    ],
)
def test_a_bare_status_in_our_words(
    code: grpc.StatusCode, said: str, kind: type[TwolaneError], text: str
) -> None:
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(code, nothing, nothing, details=said)
    explained = explain(error, endpoint="here:1", timeout_s=None)
    assert type(explained) is kind
    with pytest.raises(kind, match=text):
        raise explained


def test_a_router_that_hangs_is_not_missing_because_localhosts_other_address_refuses() -> None:
    nothing = grpc.aio.Metadata()
    said = "failed to connect to all addresses; last error: UNKNOWN: ipv6:…: Connection refused"
    error = grpc.aio.AioRpcError(CODE.UNAVAILABLE, nothing, nothing, details=said)
    with socket.create_server(("127.0.0.1", 0)) as hung:
        endpoint = f"localhost:{hung.getsockname()[1]}"
        told = str(explain(error, endpoint=endpoint, timeout_s=None))
        assert told.startswith(f"what listens at {endpoint} accepts connections but does not")
        assert "refused" not in told
    told = str(explain(error, endpoint=endpoint, timeout_s=None))
    assert told.startswith(f"no cluster answers at {endpoint} (Connection refused)")


def test_an_http_port_is_called_so_in_words() -> None:
    """This is gRPC's real text, which may change with its version."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as thread:
        listening.settimeout(60)

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(4096)

        thread.submit(answer)
        with (
            Client(f"127.0.0.1:{listening.getsockname()[1]}") as client,
            pytest.raises(UnavailableError) as refused,
        ):
            client.models()
    assert "is not a twolane cluster (it speaks HTTP: if it is a cluster's " in str(refused.value)
    assert "SETTINGS" not in str(refused.value)


def test_operators_socket_that_gets_a_prompt_is_not_called_a_stranger() -> None:
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(CODE.UNIMPLEMENTED, nothing, nothing, details="Method not found!")
    explained = explain(error, endpoint="unix:/tmp/twolane-1-a/admin.sock", timeout_s=None)
    with pytest.raises(InvalidParameterError, match="this socket is for operators"):
        raise explained
    elsewhere = explain(error, endpoint="unix:/tmp/other.sock", timeout_s=None)
    with pytest.raises(UnavailableError, match="is not a twolane cluster"):
        raise elsewhere


def test_who_ends_its_own_call_is_not_told_that_no_cluster_answers(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is gRPC's real text, which may change with its version."""
    monkeypatch.setattr(door.script, "never_safe", True)
    request = admin_pb2.WatchDrainRequest()
    with AdminClient(door.admin) as admin:
        news = admin._stub.WatchDrain(request)
        next(news)
        news.cancel()
        with pytest.raises(grpc.RpcError) as cancelled:
            list(news)
        explained = explain(cancelled.value, endpoint=door.admin, timeout_s=None)
        assert type(explained) is CancelledError
        watched = admin.watch("WatchDrain", request)
        next(watched)
        admin.close()
        with pytest.raises(CancelledError):
            list(watched)
