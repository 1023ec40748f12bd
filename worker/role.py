"""The interface between a worker and its roles. A role is an object: a worker has one, or both.

The worker calls a role on the event loop. What may free pages of rows in the batch is called
between steps only, so that no step reads a reassigned page. `now` is the loop's clock, in seconds.

    cancel -> tick -> plan -> (step) -> apply     once a step
    accept, retarget, judge, rows, report         at any time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from twolane.engine.step import Mark, RowResult, RowWork, SampledToken
from twolane.kvtransfer.config import LeaseConfig
from twolane.kvtransfer.events import ReceiverEvent, SenderEvent
from twolane.kvtransfer.receive.receiver import Receiver
from twolane.kvtransfer.send.sender import Sender
from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.attempts.attempt_log import AttemptLog
from twolane.worker.attempts.owner import Owner
from twolane.worker.rows import Row


class Role(Protocol):
    """Reports what happens to its rows through the context's outbox; every row ends in one
    RowEvent."""

    def accept(self, row: Row, now: float) -> None:
        """Start a WAITING row; raises `RowRefusedError` and keeps nothing."""
        ...

    def cancel(self, attempt: AttemptId, now: float) -> bool:
        """Stop the row and return its pages. False if it is not here."""
        ...

    def tick(self, now: float) -> None:
        """Process transfer events."""
        ...

    def plan(self, n_tokens: int, now: float) -> list[RowWork]:
        """This role's share of the next step, at most n_tokens positions. Pages are taken here."""
        ...

    def apply(self, results: Mapping[int, RowResult], now: float) -> None:
        """Process the step's results of the rows that `plan` named, by row number."""
        ...

    @property
    def wake_at_s(self) -> float | None:
        """When `plan` may have work even without an event before; None: only after an event."""
        ...

    @property
    def rows(self) -> Sequence[Row]:
        """Every row that is here, in any state."""
        ...

    def report(self, load: worker_pb2.LoadReport, now: float) -> None:
        """Fill in this role's fields."""
        ...


class PrefillSide(Role, Protocol):
    """The role that reads prompts, and sends pages."""

    sender: Sender
    lease: LeaseConfig

    def on_transfers(self, events: Sequence[SenderEvent]) -> None:
        """Transfer events; they take effect at the next `tick`. Callable at any time."""
        ...

    def on_submitted(self, work: Sequence[RowWork], mark: Mark | None, now: float) -> None:
        """The oldest unsubmitted step is now submitted: the pages that it completes may be sent as
        soon as the event `mark` has happened; None: after its results. May be called during steps.
        """
        ...

    def sends_to(self, epoch: int) -> bool:
        """Whether a row here, started or not, will go to that decode worker."""
        ...

    def retarget(
        self, attempt: AttemptId, command: worker_pb2.Retarget, log: AttemptLog, now: float
    ) -> bool:
        """Send to another decode worker under the next attempt, whose events go into `log`. False
        if it is not here."""
        ...


class DecodeSide(Role, Protocol):
    """The role that writes answers, and receives pages."""

    receiver: Receiver
    lease: LeaseConfig

    def on_transfers(self, events: Sequence[ReceiverEvent]) -> None:
        """Transfer events; they take effect at the next `tick`. Callable at any time."""
        ...

    def judge(self, epoch: int, now: float, *, asks: Owner | None) -> None:
        """Report LANDED or DEAD for every row of that router that is fed by prefill worker `epoch`;
        None: of all routers. May be called during steps."""
        ...


class Adopter(Protocol):
    """How a row passes from the prefill role to the decode role of the same worker: without a
    transfer."""

    def check_fits(self, row: Row) -> None:
        """Raises `RowRefusedError` if its prompt and growth can never fit the pool."""
        ...

    def try_promise(self, row: Row, n_new_pages: int) -> bool:
        """Promise the row a place in the batch and pages for its growth, until `adopt` or
        `GrowthReserve.forget`. Replaces an earlier promise.

        False, and no change, if there is no room in the batch, or too few spare pages for
        n_new_pages and the growth.
        """
        ...

    def adopt(self, row: Row, first: SampledToken, now: float) -> None:
        """Take over a COMPUTING or HELD row with its pages, which hold the prompt; `first` is
        sampled."""
        ...

    @property
    def lacks_pages(self) -> bool:
        """Whether rows wait for pages here."""
        ...


@dataclass(slots=True)
class Roles:
    """The roles of one worker: decode rows come first in a step. `check` runs for a check, on
    what the roles leave; it is set and cleared between steps."""

    decode: DecodeSide | None = None
    prefill: PrefillSide | None = None
    check: Role | None = None

    def __post_init__(self) -> None:
        assert self.decode or self.prefill, "a worker needs a role"

    @property
    def all(self) -> list[Role]:
        return [role for role in (self.decode, self.prefill, self.check) if role is not None]

    @property
    def names(self) -> list[worker_pb2.Role]:
        named = ((worker_pb2.ROLE_PREFILL, self.prefill), (worker_pb2.ROLE_DECODE, self.decode))
        return [name for name, role in named if role is not None]
