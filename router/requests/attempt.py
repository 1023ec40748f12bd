"""One try at a request on one prefill and one decode worker.

                    ┌── P is lost ──> JUDGING ──┐ D: DEAD, or silence
      assigned      │                   │ LANDED│
    ──────────> PLACED ─────────────────┼───────┼──> OVER
                  │ ^                   v       │     ^
                  │ │ RETARGETED     DECODING ──┼─────┘
                  │ MOVING ──────────────^──────┘
                  └──── JOINED, HANDED_OVER or a token of D

PLACED    both sides are assigned; the row belongs to P.
JUDGING   P is lost; D was asked whether all pages landed.
MOVING    this attempt took over the pages of the one before it; P has not confirmed yet.
DECODING  the row belongs to D; P does not matter any more.
OVER      its events are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from twolane.lifecycle import Lifecycle
from twolane.v1 import worker_pb2


class AttemptState(Enum):
    PLACED = auto()
    JUDGING = auto()
    MOVING = auto()
    DECODING = auto()
    OVER = auto()


S = AttemptState
ATTEMPT_MOVES: Mapping[AttemptState, frozenset[AttemptState]] = {
    S.PLACED: frozenset({S.JUDGING, S.DECODING, S.OVER}),
    S.JUDGING: frozenset({S.DECODING, S.OVER}),
    S.MOVING: frozenset({S.PLACED, S.DECODING, S.OVER}),
    S.DECODING: frozenset({S.OVER}),
    S.OVER: frozenset(),
}


class Attempt:
    """See the module's docstring. Times are seconds of the router's clock."""

    __slots__ = (
        "decode_epoch",
        "due",
        "ended_roles",
        "first_index",
        "gap_due",
        "growth_tokens",
        "key",
        "last_news",
        "life",
        "n_tokens",
        "page_tokens",
        "placed",
        "prefill_epoch",
        "prefill_numbers",
        "prefill_pages",
        "prefill_rows",
        "promised_tokens",
        "row",
        "wants_move",
    )

    def __init__(
        self,
        key: worker_pb2.AttemptKey,
        *,
        row: int,
        prefill_epoch: int,
        decode_epoch: int,
        n_tokens: int,
        first_index: int,
        growth_tokens: int,
        page_tokens: int,
        now: float,
        moved_from: Attempt | None = None,
        prefill_pages: int = 0,
    ) -> None:
        self.key = key
        self.row = row  # under which workers send its tokens
        self.prefill_epoch = prefill_epoch
        self.decode_epoch = decode_epoch
        self.n_tokens = n_tokens  # assigned: prompt and answer so far
        self.first_index = first_index  # of the answer: the token that P samples
        self.growth_tokens = growth_tokens
        self.page_tokens = page_tokens  # of the decode worker
        self.promised_tokens = n_tokens + growth_tokens  # room there; grows with the row
        # that the prompt takes at P from the rows that P decodes, until D has it; 0: P decodes none
        self.prefill_pages = prefill_pages
        self.life = Lifecycle(S.MOVING if moved_from else S.PLACED, ATTEMPT_MOVES)
        # of earlier attempts, under which P may still speak of this row
        self.prefill_numbers: tuple[int, ...] = (
            (*moved_from.prefill_numbers, moved_from.key.attempt) if moved_from else ()
        )
        # of the same attempts
        self.prefill_rows: tuple[int, ...] = (
            (*moved_from.prefill_rows, moved_from.row) if moved_from else ()
        )
        self.due: float | None = None  # JUDGING, MOVING: then it has failed
        self.gap_due: float | None = None  # events were asked for again; then it has failed
        self.wants_move = False  # P said UNPLACED
        self.ended_roles: set[int] = set()  # sides that have sent their final figures
        self.last_news = now
        self.placed = now

    @property
    def state(self) -> AttemptState:
        return self.life.state

    @property
    def is_colocated(self) -> bool:
        return self.prefill_epoch == self.decode_epoch

    @property
    def is_over(self) -> bool:
        return self.life.state is S.OVER

    def epochs(self) -> tuple[int, ...]:
        """The workers that have this attempt, each once."""
        if self.is_colocated:
            return (self.prefill_epoch,)
        return self.prefill_epoch, self.decode_epoch

    def role_of(self, key: worker_pb2.AttemptKey, epoch: int, role: int) -> int | None:
        """As whom a worker may speak of this attempt under `key`: a role, or None: not at all.

        An event that names no role is taken for the only one that fits.
        """
        is_mine = key.attempt == self.key.attempt  # guard: old attempt
        may_prefill = epoch == self.prefill_epoch and (
            is_mine or key.attempt in self.prefill_numbers
        )
        if may_prefill and role != worker_pb2.ROLE_DECODE:
            return worker_pb2.ROLE_PREFILL
        if is_mine and epoch == self.decode_epoch and role != worker_pb2.ROLE_PREFILL:
            return worker_pb2.ROLE_DECODE
        return None

    def may_tell(self, row: int, epoch: int, role: int) -> bool:
        """Whether a worker may tell tokens of this attempt under `row`, one of `rows`."""
        if role == worker_pb2.ROLE_DECODE:
            return row == self.row and epoch == self.decode_epoch
        return role == worker_pb2.ROLE_PREFILL and epoch == self.prefill_epoch

    @property
    def rows(self) -> tuple[int, ...]:
        """Every row number under which tokens may still arrive."""
        return (*self.prefill_rows, self.row)

    def set_decoding(self) -> None:
        """D has the row. May be called again."""
        if self.life.can_advance(S.DECODING):
            self.life.advance(S.DECODING)
            self.due = None
            self.wants_move = False
