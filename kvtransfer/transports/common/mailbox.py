"""Orders to a transport's thread and events back; neither side waits for the other."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from twolane.kvtransfer.transport import Wake

NewsT = TypeVar("NewsT")
Order = tuple[Callable[..., None], tuple[Any, ...]]


class Mailbox(Generic[NewsT]):
    """The event loop calls `order` and `poll`, the thread `take_orders`, `quiet` and `tell`.

    `bell` becomes readable when there are orders, so that the thread can select on it.
    """

    def __init__(self) -> None:
        self._orders: deque[Order] = deque()
        self._news: deque[NewsT] = deque()
        self._wake: Wake = _nothing
        self._is_closed = False
        self.bell, self._button = socket.socketpair()
        self.bell.setblocking(False)
        self._button.setblocking(False)

    def order(self, work: Callable[..., None], *args: Any) -> None:
        """The thread will call `work(*args)`. Ignored after `close`."""
        if self._is_closed:
            return
        self._orders.append((work, args))
        with suppress(BlockingIOError):  # the bell is readable already
            self._button.send(b"!")

    def take_orders(self) -> None:
        """Run all orders, oldest first. Cheap when there are none."""
        while self._orders:
            work, args = self._orders.popleft()
            work(*args)

    def quiet(self) -> None:
        """Make the bell unreadable. Call it before `take_orders`: after it, an order could be
        missed."""
        with suppress(BlockingIOError):
            while self.bell.recv(4096):
                pass

    def tell(self, *news: NewsT) -> None:
        if news:
            self._news.extend(news)
            self._wake()

    def poll(self) -> list[NewsT]:
        return [self._news.popleft() for _ in range(len(self._news))]

    def set_wake(self, wake: Wake) -> None:
        self._wake = wake
        if self._news:
            wake()

    def close(self) -> None:
        """Call after the thread has ended."""
        self._is_closed = True
        self._wake = _nothing
        self.bell.close()
        self._button.close()


def _nothing() -> None:
    pass
