"""A transport for one answer, after which its connection says nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Lingering:
    """What uvicorn takes for a connection's transport. `close` calls `linger`."""

    def __init__(self, transport: asyncio.Transport, linger: Callable[[], None]) -> None:
        self._transport = transport
        self._linger = linger

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._linger()
