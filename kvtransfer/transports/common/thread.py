"""The thread of one end of a transport: takes orders, reports events, and ends when closed."""

from __future__ import annotations

import ctypes
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from twolane.kvtransfer.transport import Wake
from twolane.kvtransfer.transports.common.mailbox import Mailbox

NewsT = TypeVar("NewsT")
_PAUSE_S = 100e-6  # between two looks at a device
_SET_TIMER_SLACK = 29  # an option of prctl(2)
_SLACK_NS = 1000  # by which the kernel may prolong each pause; its default is 50 us


def pause() -> None:
    """Sleep between two polls of a device event."""
    time.sleep(_PAUSE_S)


class TransportThread(ABC, Generic[NewsT]):
    """Runs `_turn` on a thread of its own from `_start` until `close`, then `_leave` once.

    The owner changes the thread's state only by orders, which the thread runs between two pieces of
    work, so nothing needs a lock.
    """

    def __init__(self, name: str) -> None:
        self.n_moved = 0  # see `Outlet`; written by the thread
        self._mailbox: Mailbox[NewsT] = Mailbox()
        self._is_closing = False  # read and written by the thread
        self._is_asked_to_close = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def dropped(self) -> Counter[str]:
        """See `Landing`. Empty for an end without a listener."""
        return Counter()

    def poll(self) -> list[NewsT]:
        return self._mailbox.poll()

    def set_wake(self, wake: Wake) -> None:
        self._mailbox.set_wake(wake)

    def close(self) -> None:
        """The thread has ended when this returns. May be called twice."""
        if not self.close_soon():
            self._thread.join()
            self._mailbox.close()

    def close_soon(self) -> bool:
        """`close` without waiting: call again until it returns True."""
        if not self._is_asked_to_close:
            self._is_asked_to_close = True
            self._order(self._end)
        if self._is_running:
            return False
        self._mailbox.close()
        return True

    # -- for the subclass, off the thread ---------------------------------------------------

    def _start(self) -> None:
        """Call at the end of the constructor."""
        self._thread.start()

    @property
    def _is_running(self) -> bool:
        return self._thread.is_alive()

    def _order(self, work: Callable[..., None], *args: Any) -> None:
        """The thread will call `work(*args)`. Ignored once it has ended."""
        if self._is_running:
            self._mailbox.order(work, *args)

    # -- for the subclass, on the thread ----------------------------------------------------

    @abstractmethod
    def _turn(self) -> None:
        """One piece of work, or one wait for orders."""

    def _leave(self) -> None:
        """The thread is about to end: complete what others still wait for."""

    def _wait(self) -> None:
        """Wait for orders, and run them."""
        self._mailbox.hear()

    def _wait_for(self, stream: socket.socket, events: int, timeout_s: float | None = None) -> bool:
        """Wait for orders and run them, or until the stream is ready for `events`.

        True if the stream is ready or has failed; False after an order or the timeout.
        """
        poller = select.poll()  # not select(): file descriptors may be above 1,023
        poller.register(self._mailbox.bell, select.POLLIN)
        poller.register(stream, events)
        timeout_ms = None if timeout_s is None else 1000 * timeout_s
        ready = {fd for fd, _ in poller.poll(timeout_ms)}
        if self._mailbox.bell.fileno() in ready:
            self._mailbox.hear()
        return stream.fileno() in ready

    def _nap(self) -> None:
        """Pause before the next poll of a device; then run the orders that came meanwhile."""
        pause()
        self._mailbox.take_orders()

    def _run(self) -> None:
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, ctypes.c_ulong(_SLACK_NS), 0, 0, 0)
        while not self._is_closing:
            self._turn()
        self._leave()

    def _end(self) -> None:
        self._is_closing = True
