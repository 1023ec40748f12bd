"""One request, from its arrival to its only end.

    QUEUED ────> RUNNING ────────────> ENDING ────> FINISHED
      │           │    ^                 │            the last token and the ledger were sent
      │           v    │                 │
      │         RESUMING                 │
      └───────────┴────────┬─────────────┴────────> FAILED     one typed error
                           └──────────────────────> CANCELLED  by the client, or an operator

QUEUED    admitted; no worker has it. A request taken over from another router begins as RUNNING if
          its rows were found, else as RESUMING.
RUNNING   one attempt is in progress.
RESUMING  its attempt failed; it waits for the next one, ahead of new requests.
ENDING    every token was sent; the router waits a moment for the workers' figures.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from hashlib import sha256
from typing import NamedTuple

from twolane.errors import DuplicateRequestError, TwolaneError
from twolane.lifecycle import Lifecycle
from twolane.params import SamplingParams
from twolane.router.requests.answer import Answer
from twolane.router.requests.attempt import Attempt
from twolane.router.requests.journal import Journal
from twolane.router.requests.ledger import Timeline
from twolane.router.requests.trace_context import TraceContext
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
    """The validated request, with its seed drawn and defaults filled in. Never changes."""

    # Drawn at random for this submission: its id at all routers and workers, and the secret with
    # which the client can resume it at another router. `fence` counts these takeovers.
    submission_id: str = field(default_factory=lambda: secrets.token_hex(16))
    resume_token: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    fence: int = 0
    request_id: str  # the client's label
    model: str
    token_ids: Sequence[int]  # a repeated field of protobuf, four bytes per id
    params: SamplingParams
    arrived: float
    priority: int = 0
    deadline: float | None = None  # router's clock
    caller: Identity = ANONYMOUS
    prefix_hashes: Sequence[int] = ()
    # Epochs of the prefill and the decode worker that it is for, alone: a check. It never waits.
    pair: tuple[int, int] | None = None
    trace: TraceContext | None = None  # None: the router makes no traces

    @property
    def tenant(self) -> str:
        return self.caller.tenant

    @property
    def cache_owner(self) -> str:
        """Whose cached pages it may use, and makes: its tenant's. Each pair that is checked has its
        own, so that the pages of one are in no other's answer."""
        return self.tenant if self.pair is None else "check {:x} {:x}".format(*self.pair)

    @property
    def resume_hash(self) -> bytes:
        """The hash of the resume token, which workers store."""
        return sha256(self.resume_token).digest()

    @property
    def label(self) -> Label:
        return Label(self.tenant, self.request_id)

    @property
    def n_prompt(self) -> int:
        return len(self.token_ids)

    @property
    def max_tokens(self) -> int:
        assert self.params.max_tokens is not None, "intake has set it to what fits"
        return self.params.max_tokens


class Request:
    """The router's record of one job. Only the modules of the dispatcher change it."""

    __slots__ = (
        "answer",
        "attempt",
        "avoid",
        "awaited_roles",
        "cost_tokens",
        "due",
        "error",
        "failures",
        "fingerprint",
        "finish_reason",
        "job",
        "journal",
        "last_attempt",
        "ledger",
        "life",
        "max_tokens",
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
        """`state` is RUNNING or RESUMING if another router began the request."""
        self.job = job
        self.n_prompt = job.n_prompt
        self.max_tokens = job.max_tokens
        self.answer = answer
        self.sampling = sampling  # as sent to workers
        self.life = Lifecycle(state, REQUEST_MOVES)
        self.timeline = Timeline(arrived=job.arrived)
        self.journal = Journal()
        self.attempt: Attempt | None = None  # the live one
        self.last_attempt: Attempt | None = None  # live or over; for the ledger
        self.n_attempts = 0
        self.fingerprint = ""  # of the workers of its last attempt
        self.failures = 0  # attempts that failed
        self.refusals = 0  # attempts refused in a row, because no worker had room
        self.n_preempted = 0
        self.avoid: frozenset[int] = frozenset()  # epochs that refused it
        self.queued_since = job.arrived
        self.cost_tokens: float = self.n_prompt + job.max_tokens  # an estimate; see `Forecast`
        self.sequence = 0  # order of arrival, set by the queue
        self.due: float | None = None  # RESUMING: earliest next attempt; ENDING: end of the wait
        # ENDING: the roles whose figures are missing.
        self.awaited_roles: frozenset[int] = frozenset()
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
    def begun(self) -> str:
        """The fingerprint of the workers that have told its tokens; empty: there are none yet."""
        return self.fingerprint if self.answer.tokens else ""

    @property
    def remaining_tokens(self) -> int:
        return self.max_tokens - len(self.answer.tokens)

    @property
    def n_tokens(self) -> int:
        """The tokens of prompt and answer so far, which a new attempt would prefill."""
        return self.n_prompt + len(self.answer.tokens)

    def drop_prompt(self) -> None:
        """Free the prompt of a request that is over, because its record may stay until the client
        has read the answer."""
        assert self.is_over
        self.job = replace(self.job, token_ids=(), prefix_hashes=())

    def growth_tokens(self, reserve: int) -> int:
        """The number of further answer tokens to reserve room for. It grows with each preemption up
        to the whole rest of the answer, so that preemptions of a request end."""
        remaining = self.remaining_tokens
        times: int = GROWTH_AFTER_PREEMPTION**self.n_preempted
        return min(remaining, reserve * times)
