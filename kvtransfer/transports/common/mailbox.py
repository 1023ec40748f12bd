"""Orders to a transport's thread and events back; neither side waits for the other."""

from __future__ import annotations

import io
import os
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from twolane.kvtransfer.transport import Wake

NewsT = TypeVar("NewsT")
Order = tuple[Callable[..., None], tuple[Any, ...]]
_COUNTER_BYTES = 8  # of an eventfd
_ONE = (1).to_bytes(_COUNTER_BYTES, sys.byteorder)


class Mailbox(Generic[NewsT]):
    """The event loop calls `order` and `poll`, the thread `hear`, `take_orders` and `tell`.

    `bell` is readable from an order until the next `hear`, so that the thread can select on it.
    """

    def __init__(self) -> None:
        self._orders: deque[Order] = deque()
        self._news: deque[NewsT] = deque()
        self._wake: Wake = _nothing
        self._is_closed = False
        self.bell = io.FileIO(os.eventfd(0), "r+")

    def order(self, work: Callable[..., None], *args: Any) -> None:
        """The thread will call `work(*args)`. Ignored after `close`."""
        if self._is_closed:
            return
        self._orders.append((work, args))
        self.bell.write(_ONE)

    def hear(self) -> None:
        """Wait until the bell is readable, and run all orders."""
        self.bell.read(_COUNTER_BYTES)  # before `take_orders`: after it, an order could be missed
        self.take_orders()

    def take_orders(self) -> None:
        """Run all orders, oldest first. Cheap when there are none."""
        while self._orders:
            work, args = self._orders.popleft()
            work(*args)

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


def _nothing() -> None:
    pass
