"""One incarnation of a worker, as a router sees it.

                 session opened            its load says so, or an operator
    JOINING ───────────────────> ALIVE <──────────────────────────> DRAINING
       │                          │  ^                                │  │
       │           broken, silent,│  │ heard again                    │  │
       │           a step is late v  │                                │  │
       │                        SUSPECT <─────────────────────────────┘  │
       └───────────────────────────┴──> GONE <───────────────────────────┘
                        left, another epoch, proof, or too long unheard

Only ALIVE gets new work. SUSPECT is no proof of anything: what it may still write to stays closed
at the workers; the router merely looks for another place.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from twolane.lifecycle import Lifecycle
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
    """See the module's docstring. Changed by `Membership` only."""

    def __init__(self, announce: cluster_pb2.AnnounceRequest, now: float) -> None:
        self.announce = announce  # the latest: roles may flip on a live engine
        self.life = Lifecycle(S.JOINING, MEMBER_MOVES)
        self.load = worker_pb2.LoadReport()
        self.is_open = False  # a session is open: commands can be sent
        self.was_refused = False  # the last dial failed
        self.drain_wanted: worker_pb2.Drain | None = None  # by an operator; None: nobody has said
        self.heard = 0  # the number of the last message of its session
        self.confirmed = 0  # the last of them that it knows to be heard
        self.last_heard = now
        self.last_given = 0  # the number of the latest prompt that it was given
        self.gone_at: float | None = None
        # (submission id, attempt): since when, oldest first. A link that breaks loses what was
        # under way, so they are all said again when the next one opens
        self.cancels: dict[tuple[str, int], float] = {}

    def note_cancel(self, submission_id: str, attempt: int, now: float) -> None:
        self.cancels.pop((submission_id, attempt), None)
        self.cancels[submission_id, attempt] = now

    def forget_cancels(self, now: float) -> None:
        """Those that have arrived, or whose rows the worker has given up meanwhile: nobody has
        listened to them for so long."""
        while self.cancels:
            key, noted = next(iter(self.cancels.items()))
            if now - noted < CANCEL_MEMORY_S:
                return
            del self.cancels[key]

    def keeps_its_name(self, now: float, suspicion_s: float) -> bool:
        """Whether a newcomer of the same worker id is refused: this one was heard lately, and its
        session is open, or being opened."""
        is_there = self.is_open or (self.state is S.JOINING and not self.was_refused)
        return is_there and self.state is not S.GONE and now - self.last_heard <= suspicion_s

    @property
    def is_to_drain(self) -> bool:
        """As far as this router was told by an operator."""
        return self.drain_wanted is not None and self.drain_wanted.enabled

    @property
    def is_stuck(self) -> bool:
        """Its latest report said that a step is late: its engine seems to hang."""
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
        """As whose its pages go to others."""
        told = self.announce
        return PageOrigin(told.fingerprint, told.layout, tuple(told.makes_dtypes))

    @property
    def prefills(self) -> bool:
        return worker_pb2.ROLE_PREFILL in self.announce.roles

    @property
    def role_names(self) -> list[str]:
        """For people."""
        return ["prefill"] * self.prefills + ["decode"] * self.decodes

    @property
    def decodes(self) -> bool:
        return worker_pb2.ROLE_DECODE in self.announce.roles
