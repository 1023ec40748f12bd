"""host:port in every spelling, and what keeps a server from listening there."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager


class ListenError(Exception):
    """Names the place, the option that set it, and why it cannot be had."""


def bare(host: str) -> str:
    """::1, also of [::1]"""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def join(host: str, port: int) -> str:
    """127.0.0.1:80, localhost:80, [::1]:80"""
    host = bare(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def listening(host: str, port: int, option: str) -> Iterator[None]:
    """Around what binds a socket: gRPC's RuntimeError and OSErrors become a `ListenError`."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        why = try_listen(host, port) or str(error)
        raise ListenError(f"cannot listen on {join(host, port)} ({option}): {why}") from error


def try_listen(host: str, port: int) -> str:
    """Why nobody could listen there now; empty: it can be done."""
    try:
        found = socket.getaddrinfo(bare(host), port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen()
    except socket.gaierror as error:
        return f"{bare(host)} is no address: {error.strerror}"
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "it is in use"
        if error.errno == errno.EADDRNOTAVAIL:
            return f"{bare(host)} is no address of this machine"
        return error.strerror or str(error)
    return ""
