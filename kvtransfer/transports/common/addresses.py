"""Sockets of the stream transports: tcp, and unix sockets in the abstract namespace.

Abstract names leave no file behind, whatever kills the process. Both ends of a unix connection must
belong to one user.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import struct

from twolane.rpc.listen import bind_port

BUFFER_BYTES = 4 * 1024 * 1024
_TCP_ADDRESS = re.compile(r"(.+):([0-9]{1,5})")


def listen_tcp(bind_host: str, advertise_host: str, ports: str = "") -> tuple[socket.socket, str]:
    """A listening socket, and the address that senders dial. Its port is one of `ports`
    ("7300-7399"; empty: any). Raises `ListenError`."""
    listener = bind_port(
        lambda port: _listen_at(bind_host, port), bind_host, 0, "--bind-host", ports
    )
    port = listener.getsockname()[1]
    return listener, f"{advertise_host or bind_host}:{port}"


def _listen_at(host: str, port: int) -> socket.socket:
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = infos[0]
    return socket.create_server(address[:2], family=family)


def listen_unix() -> tuple[socket.socket, str]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    name = f"twolane-{os.getpid()}-{secrets.token_hex(8)}"
    listener.bind(f"\0{name}")
    listener.listen()
    return listener, name


def socket_to(transport: str, address: str) -> tuple[socket.socket, object]:
    """A fresh non-blocking socket, and what to connect it to. Raises OSError, also for a peer's
    `address` that is none."""
    if transport == "unix":
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        target: object = f"\0{address}"
    else:
        parts = _TCP_ADDRESS.fullmatch(address)
        try:
            host, port = parts.groups() if parts else ("", "")
            info = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        except ValueError as error:  # of the port, or the host cannot be encoded
            raise OSError(f"no address of a socket: {address[:80]!r}") from error
        client = socket.socket(info[0], socket.SOCK_STREAM)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        target = info[4]
    client.setblocking(False)
    widen(client)
    return client, target


def widen(stream: socket.socket) -> None:
    """Unix sockets have small fixed buffers; tcp sizes its own better than we could."""
    if stream.family == socket.AF_UNIX:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)


def is_same_user(stream: socket.socket) -> bool:
    """Of a unix connection: the other end is ours too. tcp cannot tell."""
    if stream.family != socket.AF_UNIX:
        return True
    raw = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", raw)[1]
    return uid == os.getuid()
