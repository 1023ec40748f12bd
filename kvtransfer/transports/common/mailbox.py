"""Orders to a transport's thread and news back, without either side waiting for the other."""

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
    """`order` and `poll` are the loop's side; `take_orders`, `tell` and `bell` the thread's.

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
        """The thread will call `work(*args)`. Nothing happens once we are closed."""
        if self._is_closed:
            return
        self._orders.append((work, args))
        with suppress(BlockingIOError):  # full of rings already: it will look
            self._button.send(b"!")

    def take_orders(self) -> None:
        """Run what was ordered, in order. Cheap when there is nothing."""
        while self._orders:
            work, args = self._orders.popleft()
            work(*args)

    def quiet(self) -> None:
        """Empty the bell. Before `take_orders`, or an order could be missed."""
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
        """After the thread has ended."""
        self._is_closed = True
        self._wake = _nothing
        self.bell.close()
        self._button.close()


def _nothing() -> None:
    pass
