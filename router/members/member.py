"""One incarnation of a worker, as a router sees it.

                 session opened            by its load report, or an operator
    JOINING ───────────────────> ALIVE <──────────────────────────> DRAINING
       │                          │  ^                                │  │
       │           broken, silent,│  │ heard again                    │  │
       │           a step is late v  │                                │  │
       │                        SUSPECT <─────────────────────────────┘  │
       └───────────────────────────┴──> GONE <───────────────────────────┘
                        left, another epoch, proof, or silent for too long

Only ALIVE members get new work. SUSPECT proves nothing: workers keep the pages that it may still
write in quarantine; the router only resumes its requests elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from twolane.lifecycle import Lifecycle
from twolane.router.members.drain_wish import DrainWish
from twolane.router.members.worker_view import PageOrigin
from twolane.v1 import cluster_pb2, worker_pb2


class MemberState(Enum):
    JOINING = auto()
    ALIVE = auto()
    SUSPECT = auto()
    DRAINING = auto()
    GONE = auto()


CANCEL_MEMORY_S = 30.0

S = MemberState
MEMBER_MOVES: Mapping[MemberState, frozenset[MemberState]] = {
    S.JOINING: frozenset({S.ALIVE, S.DRAINING, S.GONE}),
    S.ALIVE: frozenset({S.SUSPECT, S.DRAINING, S.GONE}),
    S.SUSPECT: frozenset({S.ALIVE, S.DRAINING, S.GONE}),
    S.DRAINING: frozenset({S.ALIVE, S.SUSPECT, S.GONE}),
    S.GONE: frozenset(),
}


class Member:
    """See the module's docstring. Only `Membership` changes it."""

    def __init__(self, announce: cluster_pb2.AnnounceRequest, now: float) -> None:
        self.announce = announce  # the latest one, with the roles that it has now
        self.life = Lifecycle(S.JOINING, MEMBER_MOVES)
        self.load = worker_pb2.LoadReport()
        self.is_open = False  # a session is open: commands can be sent
        self.was_refused = False  # the last dial failed
        # An operator's command, until the worker has carried it out.
        self.wish: DrainWish | None = None
        self.heard = 0  # the number of the last message received in its session
        self.confirmed = 0  # the number of the last message whose receipt we have confirmed
        self.last_heard = now
        self.last_given = 0  # the number of the latest prompt assigned to it
        self.gone_at: float | None = None
        # When each (submission id, attempt) was cancelled, oldest first. A broken link loses
        # messages in flight, so all cancels are sent again when the next session opens.
        self.cancels: dict[tuple[str, int], float] = {}

    def note_cancel(self, submission_id: str, attempt: int, now: float) -> None:
        self.cancels.pop((submission_id, attempt), None)
        self.cancels[submission_id, attempt] = now

    def forget_cancels(self, now: float) -> None:
        """Remove old cancels: they have arrived, or the worker has dropped the rows because their
        owner was silent for so long."""
        while self.cancels:
            key, noted = next(iter(self.cancels.items()))
            if now - noted < CANCEL_MEMORY_S:
                return
            del self.cancels[key]

    def keeps_its_name(self, now: float, suspicion_s: float) -> bool:
        """Whether another worker of the same id is refused: this one was heard recently, and its
        session is open or being opened."""
        is_there = self.is_open or (self.state is S.JOINING and not self.was_refused)
        return is_there and self.state is not S.GONE and now - self.last_heard <= suspicion_s

    @property
    def is_drained(self) -> bool:
        """Whether operators want it to drain, as far as this router knows. (A stopping worker
        drains, too, but its successor does not.)"""
        return self.wish.enabled if self.wish is not None else self.load.HasField("drain")

    @property
    def drains(self) -> bool:
        """Whether it takes no new rows, now or soon."""
        return self.load.draining or (self.wish is not None and self.wish.enabled)

    @property
    def is_stuck(self) -> bool:
        """Whether its latest report has a late step: its engine seems to hang."""
        return self.load.step_age_s > self.load.step_bound_s > 0

    @property
    def state(self) -> MemberState:
        return self.life.state

    @property
    def epoch(self) -> int:
        return self.announce.worker.epoch

    @property
    def worker_id(self) -> str:
        return self.announce.worker.worker_id

    @property
    def giver(self) -> PageOrigin:
        """What decides which workers its pages can be sent to."""
        told = self.announce
        return PageOrigin(told.fingerprint, told.layout, tuple(told.makes_dtypes))

    @property
    def prefills(self) -> bool:
        return worker_pb2.ROLE_PREFILL in self.announce.roles

    def with_its_roles(self, announce: cluster_pb2.AnnounceRequest) -> cluster_pb2.AnnounceRequest:
        """The announce with the roles of its latest load report, which an announce that was under
        way does not have; `announce` itself if these are its roles."""
        if not self.load.roles or self.load.roles == announce.roles:
            return announce
        current = cluster_pb2.AnnounceRequest()
        current.CopyFrom(announce)
        current.roles[:] = self.load.roles
        return current

    @property
    def role_names(self) -> list[str]:
        """The roles as text, for logs and status."""
        return ["prefill"] * self.prefills + ["decode"] * self.decodes

    @property
    def decodes(self) -> bool:
        return worker_pb2.ROLE_DECODE in self.announce.roles
