"""Receives notifications of what a worker does; it decides nothing."""

from __future__ import annotations

from typing import Protocol

from twolane.v1 import worker_pb2


class WorkerObserver(Protocol):
    """Called on the event loop; must not block."""

    def on_step(self, seconds: float, positions: int) -> None:
        """A step has ended: its duration, and how many positions it computed."""
        ...

    def on_tokens(self, n: int) -> None:
        """This many tokens are about to be sent to routers."""
        ...

    def on_event(self, event: worker_pb2.RowEvent) -> None:
        """This event is about to be sent to a router."""
        ...


class NullObserver:
    """Ignores everything."""

    def on_step(self, seconds: float, positions: int) -> None: ...

    def on_tokens(self, n: int) -> None: ...

    def on_event(self, event: worker_pb2.RowEvent) -> None: ...
