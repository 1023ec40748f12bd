"""One request, from the door to its one end.

    QUEUED ────> RUNNING ────────────> ENDING ────> FINISHED
      │           │    ^                 │            the last token is out, the ledger too
      │           v    │                 │
      │         RESUMING                 │
      └───────────┴────────┬─────────────┴────────> FAILED     one typed error
                           └──────────────────────> CANCELLED  by the client, or an operator

QUEUED    admitted; no worker has it. One that comes from another router begins as RUNNING, if its
          rows were found, or as RESUMING.
RUNNING   one attempt is in progress.
RESUMING  its attempt failed; it waits, ahead of new work, for the next.
ENDING    every token is out; the workers' figures are awaited for a moment.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from twolane.errors import DuplicateRequestError, TwolaneError
from twolane.lifecycle import Lifecycle
from twolane.params import SamplingParams
from twolane.router.requests.answer import Answer
from twolane.router.requests.attempt import Attempt
from twolane.router.requests.ledger import Timeline
from twolane.security.identity import ANONYMOUS, Identity
from twolane.v1 import sampling_pb2


class RequestState(Enum):
    QUEUED = auto()
    RUNNING = auto()
    RESUMING = auto()
    ENDING = auto()
    FINISHED = auto()
    FAILED = auto()
    CANCELLED = auto()


GROWTH_AFTER_PREEMPTION = 4  # times as much room as before is reserved

S = RequestState
REQUEST_MOVES: Mapping[RequestState, frozenset[RequestState]] = {
    S.QUEUED: frozenset({S.RUNNING, S.FAILED, S.CANCELLED}),
    S.RUNNING: frozenset({S.RESUMING, S.ENDING, S.FAILED, S.CANCELLED}),
    S.RESUMING: frozenset({S.RUNNING, S.FAILED, S.CANCELLED}),
    S.ENDING: frozenset({S.FINISHED, S.FAILED, S.CANCELLED}),
    S.FINISHED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
}
WAITING = frozenset({S.QUEUED, S.RESUMING})


class Label(NamedTuple):
    """The client's name for its request: unique among running requests, and free again
    afterwards."""

    tenant: str
    request_id: str

    def in_use_error(self) -> DuplicateRequestError:
        return DuplicateRequestError(
            f"request id {self.request_id!r} is in use", metadata={"request_id": self.request_id}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The request as checked and complete: seed drawn, defaults filled in. Never changes."""

    # Drawn for this submission alone: its name, in all routers and at workers; the client's secret,
    # to go on with it at another router, whose number among those is `fence`.
    submission_id: str = field(default_factory=partial(secrets.token_hex, 16))
    resume_token: bytes = field(default_factory=partial(secrets.token_bytes, 16))
    fence: int = 0
    request_id: str  # the client's label
    model: str
    token_ids: Sequence[int]  # a repeated field of protobuf's: four bytes each
    params: SamplingParams
    arrived: float
    priority: int = 0
    deadline: float | None = None  # router's clock
    caller: Identity = ANONYMOUS
    prefix_hashes: Sequence[int] = ()

    @property
    def tenant(self) -> str:
        return self.caller.tenant

    @property
    def resume_hash(self) -> bytes:
        """What workers know of the token."""
        return sha256(self.resume_token).digest()

    @property
    def claim(self) -> int:
        """The nonce under which it holds its label at workers: all routers have the same."""
        return int.from_bytes(self.resume_hash[:8])

    @property
    def label(self) -> Label:
        return Label(self.tenant, self.request_id)

    @property
    def n_prompt(self) -> int:
        return len(self.token_ids)

    @property
    def max_tokens(self) -> int:
        assert self.params.max_tokens is not None, "intake has made it what fits"
        return self.params.max_tokens


class Request:
    """The router's record of one job. Only the dispatcher's parts change it."""

    __slots__ = (
        "answer",
        "attempt",
        "avoid",
        "awaited_roles",
        "cost_tokens",
        "due",
        "error",
        "failures",
        "finish_reason",
        "job",
        "last_attempt",
        "ledger",
        "life",
        "n_attempts",
        "n_preempted",
        "n_prompt",
        "queued_since",
        "refusals",
        "sampling",
        "sequence",
        "timeline",
    )

    def __init__(
        self,
        job: Job,
        answer: Answer,
        sampling: sampling_pb2.SamplingParams,
        state: RequestState = RequestState.QUEUED,
    ) -> None:
        """`state` is RUNNING or RESUMING for one that another router began."""
        self.job = job
        self.n_prompt = job.n_prompt
        self.answer = answer
        self.sampling = sampling  # as sent to workers
        self.life = Lifecycle(state, REQUEST_MOVES)
        self.timeline = Timeline(arrived=job.arrived)
        self.attempt: Attempt | None = None  # the live one
        self.last_attempt: Attempt | None = None  # live or not: for the ledger
        self.n_attempts = 0
        self.failures = 0  # attempts that ended badly
        self.refusals = 0  # attempts that no worker began, since one did: none had room just then
        self.n_preempted = 0
        self.avoid: frozenset[int] = frozenset()  # epochs that refused it
        self.queued_since = job.arrived
        self.cost_tokens: float = self.n_prompt + job.max_tokens  # an estimate; see `Forecast`
        self.sequence = 0  # order of arrival, set by the queue
        self.due: float | None = None  # RESUMING: not before; ENDING: no longer than
        self.awaited_roles: frozenset[int] = frozenset()  # ENDING: whose figures are awaited
        self.finish_reason = sampling_pb2.FINISH_REASON_UNSPECIFIED
        self.error: TwolaneError | None = None
        self.ledger: sampling_pb2.Ledger | None = None

    @property
    def state(self) -> RequestState:
        return self.life.state

    @property
    def is_over(self) -> bool:
        return self.life.is_over

    @property
    def remaining_tokens(self) -> int:
        return self.job.max_tokens - len(self.answer.tokens)

    @property
    def n_tokens(self) -> int:
        """Prompt and answer so far: the tokens that an attempt made now would have to prefill."""
        return self.n_prompt + len(self.answer.tokens)

    def drop_prompt(self) -> None:
        """The request is over; its record may stay for as long as its client reads."""
        assert self.is_over
        self.job = replace(self.job, token_ids=(), prefix_hashes=())

    def growth_tokens(self, reserve: int) -> int:
        """Room for so much more of the answer is reserved: more after each preemption, and after
        some all that may still come, so that it is not preempted for ever."""
        remaining = self.remaining_tokens
        times: int = GROWTH_AFTER_PREEMPTION**self.n_preempted
        return min(remaining, reserve * times)
