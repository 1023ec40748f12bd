"""Ports for tests that need to know them before anything listens.

Nobody else takes one before it is used, or while its listener is started again: each process of
tests has a block of its own, below the ports that the kernel gives to sockets without one (32768,
usually) and above those of Ray's workers (19999).
"""

from __future__ import annotations

import os
import socket
from functools import cache
from typing import Any

_FIRST, _END, _SIZE = 20_000, 30_000, 200
_A_ROUTER = 10  # from the ports of a router to those of the next one


class _Block:
    """Its first port is held as long as this process lives, so that no other takes the block."""

    def __init__(self) -> None:
        n_blocks = (_END - _FIRST) // _SIZE
        for i in range(n_blocks):
            self._first = _FIRST + (os.getpid() + i) % n_blocks * _SIZE
            try:
                self._held = socket.create_server(("127.0.0.1", self._first))
            except OSError:
                continue
            break
        else:
            raise AssertionError("other processes hold every block of ports")
        self._next = 1

    def take(self, n: int) -> list[int]:
        """`n` ports side by side: not those that were given last."""
        for _ in range(_SIZE):
            if self._next + n > _SIZE:
                self._next = 1
            ports = [self._first + self._next + i for i in range(n)]
            self._next += n
            if all(map(_is_free, ports)):
                return ports
        raise AssertionError(f"no {n} free ports side by side")


def free_ports(n: int) -> list[int]:
    """`n` ports side by side."""
    return _block(os.getpid()).take(n)


def free_range(n: int) -> str:
    """`n` ports side by side, as an option has them: 23000-23003."""
    ports = free_ports(n)
    return f"{ports[0]}-{ports[-1]}"


def router_ports(n_routers: int = 1) -> dict[str, Any]:
    """All that routers of one host listen at, as options. One that is killed and started again
    finds its own free; a port that the kernel had given it may be somebody else's by then."""
    first = free_ports(_A_ROUTER * n_routers)[0]
    names = ("port", "http_port", "worker_port", "metrics_port")
    return {name: first + i for i, name in enumerate(names)}


@cache
def _block(pid: int) -> _Block:
    """That of this process; one that was forked off has another."""
    return _Block()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))  # at every address; nobody is heard there
        except OSError:
            return False
    return True
