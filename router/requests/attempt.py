"""One try at a request on one prefill and one decode worker.

                    ┌── P is lost ──> JUDGING ──┐ D: DEAD, or silence
      assigned      │                   │ LANDED│
    ──────────> PLACED ─────────────────┼───────┼──> OVER
                  │ ^                   v       │     ^
                  │ │ RETARGETED     DECODING ──┼─────┘
                  │ MOVING ──────────────^──────┘
                  └──── JOINED, HANDED_OVER or a token of D

PLACED    both sides are assigned; the row belongs to P.
JUDGING   P is lost; the router waits for D to report whether all pages have landed.
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
        self.row = row  # the row number under which workers send its tokens
        self.prefill_epoch = prefill_epoch
        self.decode_epoch = decode_epoch
        self.n_tokens = n_tokens  # assigned: prompt and answer so far
        self.first_index = first_index  # index in the answer of the token that P samples
        self.growth_tokens = growth_tokens
        self.page_tokens = page_tokens  # of the decode worker
        self.promised_tokens = n_tokens + growth_tokens  # room at D; grows with the row
        # Pages at P that the prompt takes from rows that P decodes, until D has the row; 0 if P
        # decodes none.
        self.prefill_pages = prefill_pages
        self.life = Lifecycle(S.MOVING if moved_from else S.PLACED, ATTEMPT_MOVES)
        # Numbers of earlier attempts, under which P may still send events of this row.
        self.prefill_numbers: tuple[int, ...] = (
            (*moved_from.prefill_numbers, moved_from.key.attempt) if moved_from else ()
        )
        # Row numbers of the same attempts.
        self.prefill_rows: tuple[int, ...] = (
            (*moved_from.prefill_rows, moved_from.row) if moved_from else ()
        )
        # JUDGING, MOVING: when it counts as failed. PLACED, if P cannot hand the row over: when
        # another D is tried.
        self.due: float | None = None
        # Missing events were requested again; when it counts as failed.
        self.gap_due: float | None = None
        self.wants_move = False  # P said UNPLACED
        self.ended_roles: set[int] = set()  # roles whose workers have sent their final figures
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

    def postpone(self, by_s: float, now: float, most_s: float) -> None:
        """Let all that is due be due so much later, `most_s` from now at the latest."""
        self.due = later(self.due, by_s, now + most_s)
        self.gap_due = later(self.gap_due, by_s, now + most_s)
        self.last_news = min(now, self.last_news + by_s)

    def epochs(self) -> tuple[int, ...]:
        """The workers that have this attempt, each once."""
        if self.is_colocated:
            return (self.prefill_epoch,)
        return self.prefill_epoch, self.decode_epoch

    def role_of(self, key: worker_pb2.AttemptKey, epoch: int, role: int) -> int | None:
        """The role in which a worker may send events of this attempt under `key`; None if it may
        not.

        An event without a role gets the only role that fits.
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
        """Whether a worker may send tokens of this attempt under `row`, one of `rows`."""
        if role == worker_pb2.ROLE_DECODE:
            return row == self.row and epoch == self.decode_epoch
        return role == worker_pb2.ROLE_PREFILL and epoch == self.prefill_epoch

    @property
    def rows(self) -> tuple[int, ...]:
        """Every row number under which tokens may still arrive."""
        return (*self.prefill_rows, self.row)

    def set_decoding(self) -> bool:
        """D has the row. May be called again. Returns whether that is news."""
        is_news = self.life.can_advance(S.DECODING)
        if is_news:
            self.life.advance(S.DECODING)
            self.due = None
            self.wants_move = False
        return is_news


def later(due: float | None, by_s: float, latest: float) -> float | None:
    """What is due later than that anyway stays as it is."""
    return None if due is None else max(due, min(due + by_s, latest))
