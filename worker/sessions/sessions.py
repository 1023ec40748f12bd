"""The streams from routers: opening, commands down, events and load up, loss.

    router --- Open{epoch} --> worker        the epoch must be this incarnation's
           <-- Opened, load ---
           --- Assign, Cancel, … -->
           <-- tokens, row events, load ---  one message per step

A load report is sent at least each second; with every event that frees pages, so that they are
reassigned at once; and when the worker falls idle and the report has changed.

A second stream of the same router process replaces its first. Another process with that router_id
is refused while the first one's stream is open and not silent: two routers with one id would
displace each other forever. After a stream ends, its attempts run on without a listener until
ATTACH, or until the grace ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from twolane.errors import InvalidRequestError
from twolane.rpc.link import LinkBrokenError
from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_log import FREES_PAGES
from twolane.worker.attempts.owner import Owner
from twolane.worker.attempts.registry import Registry
from twolane.worker.config import SessionConfig
from twolane.worker.context import WorkerContext
from twolane.worker.errors import RouterInUseError, StaleEpochError
from twolane.worker.observer import WorkerObserver
from twolane.worker.sessions.session import Session, SessionLink


class CommandHandler(Protocol):
    """Carries out one message of a router."""

    def handle(self, session: Session, request: worker_pb2.SessionRequest, now: float) -> None: ...


class Sessions:
    """All open streams. `describe_load` is called when a report is due."""

    def __init__(
        self,
        context: WorkerContext,
        config: SessionConfig,
        registry: Registry,
        observer: WorkerObserver,
        *,
        describe_load: Callable[[], worker_pb2.LoadReport],
        describe_address: Callable[[], worker_pb2.WorkerAddress],
    ) -> None:
        self._context = context
        self._config = config
        self._registry = registry
        self._observer = observer
        self._describe_load = describe_load
        self._describe_address = describe_address
        self._open: dict[str, Session] = {}

    async def serve(self, link: SessionLink, handler: CommandHandler) -> None:
        """Serve one stream until it ends.

        Raises `InvalidRequestError` if it does not begin with Open, `StaleEpochError` if Open names
        another incarnation, and `RouterInUseError` if another process of that router_id is
        connected. The caller closes the link.
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
                f"a session must begin with open, within {within_s:g} s", field="open"
            ) from None
        session = self._admit(first, link, clock())
        try:
            while True:
                request = await link.receive()
                session.heard_s = clock()
                self.ship(session.heard_s)  # events before the command are sent before its answer
                handler.handle(session, request, session.heard_s)
                self.ship(clock())  # a verdict does not wait for the running step
        except LinkBrokenError:
            return
        finally:
            if self._open.get(session.owner.router_id) is session:
                del self._open[session.owner.router_id]
            self._registry.detach(session, clock())

    def _admit(self, first: worker_pb2.SessionRequest, link: SessionLink, now: float) -> Session:
        owner = Owner(first.open.router_id, first.open.router_epoch)
        if not all(owner):
            text = "a session must begin with open{router_id, router_epoch}"
            raise InvalidRequestError(text, field="open")
        if first.open.worker_epoch != self._context.epoch:
            self._context.dropped["epoch"] += 1
            raise StaleEpochError(
                f"open is for epoch {first.open.worker_epoch}; this is {self._context.epoch}"
            )
        session = Session(owner, link, now, first.open.router)
        if (former := self._open.get(owner.router_id)) is not None:
            self._check_replaces(former, owner, now)
            former.close()
            self._registry.detach(former, now)
        self._open[owner.router_id] = session
        opened = worker_pb2.Opened(worker=self._describe_address())
        session.send(worker_pb2.SessionResponse(opened=opened, load=self._describe_load()), now)
        return session

    def _check_replaces(self, former: Session, owner: Owner, now: float) -> None:
        silent_s = now - former.heard_s
        if former.owner == owner or silent_s >= self._config.suspicion_s:  # guard: router id
            return
        self._context.dropped["router_in_use"] += 1
        raise RouterInUseError(
            f"another router with the id {owner.router_id!r} was heard {silent_s:.1f} s ago; "
            "each router needs an id of its own"
        )

    @property
    def routers(self) -> list[worker_pb2.RouterAddress]:
        """Those that have a session and say where they are reached."""
        named = [session.router for session in self._open.values()]
        return [router for router in named if router.router_id]

    def ship(self, now: float) -> None:
        """Send all pending events and tokens: one message to each router concerned."""
        events = self._context.outbox.take()
        for event in events:
            self._observer.on_event(event)
        heard = self._registry.dispatch(events, now)
        for session in self._open.values():
            rows = heard.get(session, [])
            if n_tokens := session.n_tokens:
                self._observer.on_tokens(n_tokens)
            elif not rows:
                continue
            frees_pages = any(event.kind in FREES_PAGES for event in rows)  # guard: freed pages
            self._send(session, rows, 0.0 if frees_pages else self._config.load_least_s, now)

    def beat(self, now: float, every_s: float) -> None:
        """Send a load report to every router that has had none for every_s."""
        for session in list(self._open.values()):
            if session.needs_load(now, every_s):
                self._send(session, [], 0.0, now)

    def report_idle(self, now: float) -> None:
        """No step is in flight, and none will be soon: send the load to routers whose last report
        differs."""
        load = self._describe_load()
        for session in self._open.values():
            if not session.has_sent(load):
                session.send(worker_pb2.SessionResponse(load=load), now)

    @property
    def open(self) -> Iterable[Session]:
        return self._open.values()

    def close(self) -> None:
        """End every stream, when the worker stops."""
        for session in list(self._open.values()):
            session.close()

    def _send(
        self,
        session: Session,
        rows: list[worker_pb2.RowEvent],
        load_every_s: float,
        now: float,
    ) -> None:
        response = worker_pb2.SessionResponse(tokens=session.take_tokens(), rows=rows)
        if session.needs_load(now, load_every_s):
            response.load.CopyFrom(self._describe_load())
        # the pages of a row that has just ended come free when the step in flight is done
        session.send(response, now, owes_load=self._context.returns.is_waiting)
