"""What a worker that takes no new rows still has, and the ticket that says it may be killed.

    taking rows --- drain ---> draining --- no blocker ---> ticket --- taken ---> (killed)
         ^                        |                           |
         `-------- undrain -------+---------------------------'

With a ticket, SIGKILL loses nothing: no row is here, no step runs, no peer reads or writes pages,
every router knows of the drain, and has confirmed the last tokens of its rows (or their grace is
over, so that no router could ask for them any more). A ticket is given once and holds until an
undo: nothing that would be in its way can begin here meanwhile, since new rows are refused. Taking
it makes the drain final.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from twolane.v1 import drain_pb2
from twolane.worker.attempts.registry import Registry
from twolane.worker.context import WorkerContext
from twolane.worker.role import Roles
from twolane.worker.sessions.session import Session
from twolane.worker.steps.step_watch import StepWatch

MAX_NAMES = 8  # of what blocks; the rest is counted


class Drain:
    """`is_stopping` is set by the process that ends: no router can undo it."""

    def __init__(
        self,
        context: WorkerContext,
        roles: Roles,
        registry: Registry,
        watch: StepWatch,
        *,
        sessions: Callable[[], Iterable[Session]],
        grace_s: float,
    ) -> None:
        """A router that confirms nothing is waited for `grace_s`."""
        self._context = context
        self._roles = roles
        self._registry = registry
        self._watch = watch
        self._sessions = sessions
        self._grace_s = grace_s
        self._is_wanted = False  # by the router that sent the last DRAIN
        self._hands_over = False
        self._number = 0  # of this drain
        self._since_s = 0.0
        self._has_ticket = False
        self._is_taken = False
        self._has_news = False  # that routers wait for
        self.is_stopping = False

    @property
    def n_begun(self) -> int:
        """Drains that routers have begun."""
        return self._number

    @property
    def is_on(self) -> bool:
        """Whether new rows are refused."""
        return self.is_stopping or self._is_wanted

    def command(self, drain: drain_pb2.Drain, now: float) -> str:
        """Carry out a router's DRAIN. Returns why it changes nothing, in a word; empty: it was
        done, or is so already."""
        if drain.take_ticket:
            if not (self._has_ticket and drain.take_ticket == self._number):  # guard: ticket
                return "stale_ticket"
            self._is_taken = self._has_news = True
            return ""
        if drain.HasField("begun") and self._number > drain.begun:  # guard: said again
            return "stale_drain"
        if not drain.enabled and self._is_taken:  # guard: ticket taken
            return "ticket_taken"
        if drain.enabled and not self._is_wanted:
            self._number += 1
            self._since_s = now
        if not drain.enabled:
            self._has_ticket = False
        self._has_news = True
        self._is_wanted = drain.enabled
        self._hands_over = drain.enabled and (drain.hand_over or self._hands_over)
        return ""

    def look(self, now: float) -> bool:
        """Give the ticket, if nothing is in the way. Returns whether routers are to be told at
        once."""
        has_news, self._has_news = self._has_news, False
        if self._is_wanted and not self._has_ticket:
            self._has_ticket = not self._blockers(now)
            has_news |= self._has_ticket
        return has_news

    def report(self, now: float) -> drain_pb2.DrainReport | None:
        """For the load report; None: no router wants it to drain."""
        if not self._is_wanted:
            return None
        return drain_pb2.DrainReport(
            number=self._number,
            blockers=[] if self._has_ticket else self._blockers(now),
            has_ticket=self._has_ticket,
            is_taken=self._is_taken,
            hands_over=self._hands_over,
            eta_s=self._eta_s(),
            quarantined_pages=self._context.pages.counts().quarantined,
        )

    def _blockers(self, now: float) -> list[drain_pb2.DrainBlocker]:
        prefill, decode = self._roles.prefill, self._roles.decode
        incoming = [] if decode is None else decode.receiver.keys()
        outgoing = [] if prefill is None else prefill.sender.keys()
        found = [
            _blocker("rows", (log.claim.request_id for log in self._registry.live)),
            _blocker("step", [""] * self._watch.n_in_flight),
            _blocker("incoming", (f"{key.sender_epoch:016x}" for key in incoming)),
            _blocker("outgoing", (f"{key.receiver_epoch:016x}" for key in outgoing)),
            _blocker("routers", self._ignorant(now)),
            _blocker("unheard", (log.claim.request_id for log in self._registry.unheard(now))),
        ]
        return [blocker for blocker in found if blocker.count]

    def _ignorant(self, now: float) -> list[str]:
        """Routers that may still assign rows."""
        if now >= self._since_s + self._grace_s:
            return []
        return [s.owner.router_id for s in self._sessions() if not s.knows(self._number)]

    def _eta_s(self) -> float:
        """Every decode row gets a token a step."""
        rows = () if self._roles.decode is None else self._roles.decode.rows
        return max((row.n_left for row in rows), default=0) * self._watch.step_s


def _blocker(kind: str, of: Iterable[str]) -> drain_pb2.DrainBlocker:
    names = list(of)
    known = itertools.islice(filter(None, dict.fromkeys(names)), MAX_NAMES)
    return drain_pb2.DrainBlocker(kind=kind, count=len(names), names=known)
