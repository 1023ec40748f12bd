"""Who looks on: told what happens, never asked."""

from __future__ import annotations

from typing import Protocol

from twolane.v1 import worker_pb2


class Observer(Protocol):
    """Called on the event loop; must not block."""

    def on_step(self, seconds: float, positions: int) -> None:
        """A step is over: how long it took, and how many positions it computed."""
        ...

    def on_tokens(self, n: int) -> None:
        """Routers are about to be told so many tokens."""
        ...

    def on_news(self, event: worker_pb2.RowEvent) -> None:
        """A router is about to be told this."""
        ...


class NullObserver:
    """Looks away."""

    def on_step(self, seconds: float, positions: int) -> None: ...

    def on_tokens(self, n: int) -> None: ...

    def on_news(self, event: worker_pb2.RowEvent) -> None: ...
