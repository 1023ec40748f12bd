"""Ports for tests that need to know them before anything listens."""

from __future__ import annotations

import os
import socket


def free_range(n: int) -> str:
    """`n` ports side by side that are free now, as an option has them: 23000-23003."""
    for first in range(23_000 + os.getpid() % 1000 * 9, 60_000, n):
        held: list[socket.socket] = []
        try:
            for port in range(first, first + n):
                held.append(socket.create_server(("127.0.0.1", port)))  # noqa: PERF401
        except OSError:
            continue
        finally:
            for listener in held:
                listener.close()
        return f"{first}-{first + n - 1}"
    raise AssertionError(f"no {n} free ports side by side")
