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

from router.policy import Giver
from twolane.lifecycle import Lifecycle
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
        self.drain_wanted = False  # by an operator
        self.last_heard = now
        self.last_given = 0  # the number of the latest prompt that it was given
        self.gone_at: float | None = None
        # cancels of the last CANCEL_MEMORY_S, and those that wait for a session: a link that
        # breaks loses what was under way, so they are all said again when the next one opens
        self.cancels: dict[tuple[str, int], float] = {}

    def forget_cancels(self, now: float) -> None:
        """Those that have surely arrived."""
        if not self.is_open:
            return
        old = []
        for key, at in self.cancels.items():  # in the order of their times
            if now - at < CANCEL_MEMORY_S:
                break
            old.append(key)
        for key in old:
            del self.cancels[key]

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
    def giver(self) -> Giver:
        """As whose its pages go to others."""
        told = self.announce
        return Giver(told.fingerprint, told.layout, tuple(told.makes_dtypes))

    @property
    def prefills(self) -> bool:
        return worker_pb2.ROLE_PREFILL in self.announce.roles

    @property
    def decodes(self) -> bool:
        return worker_pb2.ROLE_DECODE in self.announce.roles
