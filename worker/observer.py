"""Who looks on: told what happens, never asked."""

from __future__ import annotations

from typing import Protocol

from worker.news import Item


class Observer(Protocol):
    """Called on the event loop; must not block."""

    def on_step(self, seconds: float, positions: int) -> None:
        """A step is over: how long it took, and how many positions it computed."""
        ...

    def on_news(self, item: Item) -> None:
        """A router is about to be told this."""
        ...


class Nobody:
    """Looks away."""

    def on_step(self, seconds: float, positions: int) -> None: ...

    def on_news(self, item: Item) -> None: ...
