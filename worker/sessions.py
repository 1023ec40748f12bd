"""The streams from routers: opening, commands down, news and load up, loss.

    router --- Open{epoch} --> worker        the epoch must be this incarnation's
           <-- Opened, load ---
           --- Assign, Cancel, … -->
           <-- tokens, row news, load ---    one message a step; load at least each second

A second stream of the same router takes the place of its first. When a stream is over, its
attempts run on unheard until ATTACH, or until the grace ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from twolane.errors import InvalidRequestError
from twolane.rpc.link import LinkBrokenError
from twolane.v1 import worker_pb2
from worker.config import SessionConfig
from worker.errors import StaleEpochError
from worker.news import Item
from worker.observer import Observer
from worker.registry import Registry
from worker.session import Session, SessionLink, response_of
from worker.site import Site


class CommandHandler(Protocol):
    """Acts upon one message of a router."""

    def handle(self, session: Session, request: worker_pb2.SessionRequest, now: float) -> None: ...


class Sessions:
    """Every open stream. `describe_load` is asked when a report is due."""

    def __init__(
        self,
        site: Site,
        config: SessionConfig,
        registry: Registry,
        observer: Observer,
        *,
        describe_load: Callable[[], worker_pb2.LoadReport],
        describe_address: Callable[[], worker_pb2.WorkerAddress],
    ) -> None:
        self._site = site
        self._config = config
        self._registry = registry
        self._observer = observer
        self._describe_load = describe_load
        self._describe_address = describe_address
        self._open: dict[str, Session] = {}

    async def serve(self, link: SessionLink, handler: CommandHandler) -> None:
        """Serve one stream until it is over.

        Raises `InvalidRequestError` when it does not begin with Open, and `StaleEpochError` when
        Open means another incarnation. The link stays the caller's to close.
        """
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(self._config.open_within_s):
                first = await link.receive()
        except LinkBrokenError:
            return
        except TimeoutError:
            within_s = self._config.open_within_s
            raise InvalidRequestError(
                f"a session begins with open, within {within_s:g} s", field="open"
            ) from None
        session = self._admit(first, link, clock())
        try:
            while True:
                request = await link.receive()
                handler.handle(session, request, clock())
                self.ship(clock())  # a verdict does not wait for the running step
        except LinkBrokenError:
            return
        finally:
            if self._open.get(session.router_id) is session:
                del self._open[session.router_id]
            self._registry.detach(session, clock())

    def _admit(self, first: worker_pb2.SessionRequest, link: SessionLink, now: float) -> Session:
        if first.WhichOneof("command") != "open" or not first.open.router_id:
            raise InvalidRequestError("a session begins with open{router_id}", field="open")
        if first.open.worker_epoch != self._site.epoch:
            self._site.dropped["epoch"] += 1
            raise StaleEpochError(
                f"open means epoch {first.open.worker_epoch}; this is {self._site.epoch}"
            )
        session = Session(first.open.router_id, link)
        if (former := self._open.get(session.router_id)) is not None:
            former.close()
            self._registry.detach(former, now)
        self._open[session.router_id] = session
        opened = worker_pb2.Opened(worker=self._describe_address())
        session.send(worker_pb2.SessionResponse(opened=opened, load=self._describe_load()), now)
        return session

    def ship(self, now: float) -> None:
        """Send all news that there are: one message to each router that they concern."""
        items = self._site.news.take()
        if not items:
            return
        rows = [item for item in items if isinstance(item, worker_pb2.RowEvent)]
        self._observer.on_tokens(len(items) - len(rows))
        for event in rows:
            self._observer.on_news(event)
        news = self._registry.dispatch(items, now)
        for session, heard in news.items():
            assert isinstance(session, Session)
            self._send(session, heard, self._config.load_least_s, now)

    def beat(self, now: float, every_s: float) -> None:
        """Send a load report to every router that has not had one for every_s."""
        for session in list(self._open.values()):
            if session.needs_load(now, every_s):
                self._send(session, [], 0.0, now)

    def close(self) -> None:
        """End every stream: the worker stops."""
        for session in list(self._open.values()):
            session.close()

    def _send(self, session: Session, items: list[Item], load_every_s: float, now: float) -> None:
        response = response_of(items)
        if session.needs_load(now, load_every_s):
            response.load.CopyFrom(self._describe_load())
        session.send(response, now)
