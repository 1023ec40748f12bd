"""Whether a client reads what is written to it."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Callable

# struct tcp_info of Linux: tcpi_bytes_acked, what the peer's kernel has taken so far.
_ACKED = slice(120, 128)


class ReaderWatch:
    """Calls `on_silent` once something has waited for the peer of a TCP transport for `within_s`,
    to twice that, without a byte being taken. The kernel is asked: a transport with TLS does not
    tell what waits below it."""

    def __init__(
        self, transport: asyncio.Transport, within_s: float, on_silent: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        self._within_s = within_s
        self._on_silent = on_silent
        self._timer: asyncio.TimerHandle | None = None
        self._is_answering = False
        self._was_unread = False  # at the last look
        self._n_taken = 0

    @property
    def has_unread(self) -> bool:
        """Whether something is written that the peer's kernel has not taken."""
        return self._transport.get_write_buffer_size() > 0 or self._n_in_kernel() > 0

    def begin(self) -> None:
        """An answer begins: look until its end, and until all of it is taken."""
        self._is_answering = True
        if self._timer is None:
            self._look_later()

    def end(self) -> None:
        """The answer is complete."""
        self._is_answering = False

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._was_unread, self._n_taken = self.has_unread, self._taken()
        self._timer = asyncio.get_running_loop().call_later(self._within_s, self._look)

    def _look(self) -> None:
        self._timer = None
        has_unread = self.has_unread
        if has_unread and self._was_unread and self._taken() == self._n_taken:
            self._on_silent()
        elif has_unread or self._is_answering:
            self._look_later()

    def _taken(self) -> int:
        """Bytes taken so far; where the kernel does not count them, it falls by those that wait."""
        if not sys.platform.startswith("linux"):
            return -self._transport.get_write_buffer_size() - self._n_in_kernel()
        facts = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.stop)
        return int.from_bytes(facts[_ACKED], sys.byteorder)

    def _n_in_kernel(self) -> int:
        (n,) = struct.unpack("i", fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4)))
        return int(n)
