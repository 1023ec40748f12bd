"""A row: one sequence in the batch, from ASSIGN to the end of its time on this worker.

               PrefillRole                          DecodeRole
    WAITING -- pages taken --> COMPUTING
       |                           |-- first token, sent to a decode worker --> HELD --.
       |                           |-- first token, adopted here -----.<--- kept here --|
       |                           |                                  v                |
       `---- pages landed -----------------------------------------> RUNNING           |
       |                           |                                  |                |
       `--------- cancelled, failed, refused, finished, handed over --+----------------+--> OVER

Its tokens and pages:

    0             n_prompt     n_input         n_computed      n_tokens
    |--- prompt ---|-- resumed --|--- answered here ------------|
    |------------- in pages -----------------|  to be computed  |

Invariants, asserted at each state change and by `check_integrity`: 1 <= n_prompt <= n_input <=
n_tokens, 0 <= n_computed <= n_tokens, the pages hold n_computed positions, and a RUNNING row has
computed all but its newest token. Everything else is derived.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import cached_property
from operator import attrgetter
from typing import Final

from twolane.engine.allocator import PageAllocator
from twolane.engine.prefix import UNIT_TOKENS, chain_hashes
from twolane.engine.step import EngineSpec, Page, RowWork, SampledToken
from twolane.lifecycle import Lifecycle
from twolane.params import SamplingParams
from twolane.v1 import sampling_pb2, worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.attempts.attempt_log import AttemptLog
from twolane.worker.finish import GOES_ON, end_ids, finish_reason, most_tokens
from twolane.worker.timeline import Timeline

# Of a resumed answer, in one step of an engine whose answers have other pages than a prompt: it
# computes them one after the other, each in a pass of its own. All other rows wait for these.
REPLAYED_TOKENS = 16


class RowState(Enum):
    """See the drawing above."""

    WAITING = "waiting"
    COMPUTING = "computing"
    HELD = "held"
    RUNNING = "running"
    OVER = "over"


MOVES: dict[RowState, frozenset[RowState]] = {
    RowState.WAITING: frozenset({RowState.COMPUTING, RowState.RUNNING, RowState.OVER}),
    RowState.COMPUTING: frozenset({RowState.HELD, RowState.RUNNING, RowState.OVER}),
    RowState.HELD: frozenset({RowState.RUNNING, RowState.OVER}),
    RowState.RUNNING: frozenset({RowState.OVER}),
    RowState.OVER: frozenset(),
}


class Row:
    """Built from a checked ASSIGN. Roles read and change it, between steps only."""

    def __init__(
        self,
        assign: worker_pb2.Assign,
        params: SamplingParams,
        spec: EngineSpec,
        *,
        number: int,
        arrived_s: float,
        log: AttemptLog | None = None,
    ) -> None:
        """`log` records its tokens; None: a log without a listener."""
        # First what each step reads: a step of many rows waits for memory more than for Python.
        self.number = number  # identifies it in steps; never used twice by a worker
        self._life = Lifecycle(RowState.WAITING, MOVES)
        self.state = self._life.state  # changed by `advance` only
        self.n_computed = 0
        self.n_ahead = 0  # positions in steps in flight
        self.token_ids = assign.token_ids[:]
        self.pages: list[Page] = []
        self.n_prompt: Final[int] = assign.n_prompt
        self.log = log or AttemptLog.of(assign)
        self._n_most = most_tokens(self.n_prompt, params, spec)
        self._end_ids = end_ids(params, spec)
        self._page_tokens = spec.page_tokens
        self._sample: Final = assign.sample
        self.params = params
        self.times = Timeline(arrived_s)
        self.attempt = AttemptId.of(assign.key)  # changes when the row is retargeted, as does `log`
        self.decode = assign.decode  # where it goes next; changes when the row is retargeted
        self.assign = assign
        self.spec = spec
        self.n_input: Final = len(self.token_ids)  # prompt and resumed tokens
        # Sorts rows: higher priority first, then longest waiting.
        self.turn: Final = (-assign.priority, arrived_s, number)
        self.first: SampledToken | None = None  # what the prefill role sampled
        self.n_offered_pages = 0  # to the transfer
        self.n_cached = 0  # computed positions that came from the prefix cache
        self.log.hear(self.token_ids, self.n_prompt)
        self.check()

    # -- lifecycle --------------------------------------------------------------------------

    def advance(self, to: RowState) -> None:
        self._life.advance(to)
        self.state = self._life.state
        self.check()

    def tell(self, log: AttemptLog) -> None:
        """Its tokens are reported to this log from now on."""
        self.log = log
        log.hear(self.token_ids, self.n_prompt)

    def check(self) -> None:
        """Assert the invariants of the module's docstring."""
        n, n_computed = len(self.token_ids), self.n_computed
        assert 1 <= self.n_prompt <= self.n_input <= n, f"{self}: {self.n_input} given of {n}"
        assert 0 <= self.n_cached <= n_computed <= n, f"{self}: {n_computed} of {n}"
        assert n_computed <= len(self.pages) * self.spec.page_tokens, f"{self}: pages too few"
        assert 0 <= self.n_ahead <= n + 1 - n_computed, f"{self}: {self.n_ahead} in flight"
        if self._life.state is RowState.RUNNING:
            assert n_computed == n - 1, f"{self} runs with {n_computed} of {n} computed"

    # -- tokens -----------------------------------------------------------------------------

    @property
    def n_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def n_left(self) -> int:
        """The most tokens that its answer may still get."""
        return max(0, self._n_most - len(self.token_ids))

    @property
    def n_uncomputed(self) -> int:
        return self.n_tokens - self.n_computed

    @property
    def n_unplanned(self) -> int:
        """Known positions that no step has computed or is computing."""
        return max(0, self.n_uncomputed - self.n_ahead)

    @property
    def replays(self) -> bool:
        """Whether it is a resumed answer whose tokens are computed one by one."""
        return self.n_input > self.n_prompt and not self.spec.indexes_answers

    @property
    def n_plannable(self) -> int:
        """How many of these the next step may compute."""
        n_unplanned = self.n_unplanned
        if self.spec.indexes_answers:
            return n_unplanned
        start = self.n_computed + self.n_ahead
        return min(n_unplanned, max(0, self.n_prompt - start) + REPLAYED_TOKENS)

    @property
    def may_go_on(self) -> bool:
        """Whether more tokens can follow the one that is being sampled, if any."""
        return not self.n_ahead or len(self.token_ids) + 1 < self._n_most

    @property
    def next_index(self) -> int:
        """The index in the answer of the token sampled next."""
        return len(self.token_ids) - self.n_prompt

    def append(self, token: int) -> sampling_pb2.FinishReason:
        """Add a sampled token; returns why the answer ends with it, UNSPECIFIED if it goes on."""
        self.token_ids.append(token)
        return self._why_end(token)

    def take(self, token: int) -> sampling_pb2.FinishReason:
        """`append` for a RUNNING row, whose tokens before this one are now all computed."""
        self.n_computed = n_computed = len(self.token_ids)
        assert n_computed <= len(self.pages) * self._page_tokens, f"{self}: pages too few"
        self.token_ids.append(token)
        if n_computed + 1 < self._n_most and token not in self._end_ids:
            return GOES_ON
        return self._why_end(token)

    def _why_end(self, token: int) -> sampling_pb2.FinishReason:
        n_tokens = len(self.token_ids)
        if n_tokens < self._n_most and token not in self._end_ids:
            return GOES_ON
        return finish_reason(
            last_token=token,
            n_answer=n_tokens - self.n_prompt,
            n_tokens=n_tokens,
            params=self.params,
            spec=self.spec,
        )

    @cached_property
    def unit_hashes(self) -> list[bytes]:
        """The chain hash of every full unit of the given tokens that may be indexed. The names of
        pages of any size are among them."""
        n_tokens = self.n_input if self.spec.indexes_answers else self.n_prompt
        return self._chain(n_tokens, UNIT_TOKENS)

    @cached_property
    def prompt_hashes(self) -> list[bytes]:
        """The chain hash of every full page of the given tokens that may be indexed."""
        step = self.spec.page_tokens // UNIT_TOKENS
        return self.unit_hashes[step - 1 :: step]

    def chain_hashes(self, n_tokens: int) -> list[bytes]:
        """The chain hash of every full page among its first n_tokens."""
        return self._chain(n_tokens, self.spec.page_tokens)

    def _chain(self, n_tokens: int, every: int) -> list[bytes]:
        return chain_hashes(
            self.token_ids[:n_tokens],
            every,
            fingerprint=self.spec.fingerprint,
            adapter=self.assign.adapter,
            tenant_salt=self.assign.tenant,
        )

    # -- pages ------------------------------------------------------------------------------

    @property
    def n_positions(self) -> int:
        """How many positions its pages hold."""
        return len(self.pages) * self.spec.page_tokens

    def pages_for(self, n_tokens: int) -> int:
        """How many pages n_tokens positions need."""
        return -(-n_tokens // self.spec.page_tokens)

    @property
    def n_prompt_pages(self) -> int:
        """How many pages the given tokens need: what a prefill takes and a transfer moves."""
        return self.pages_for(self.n_input)

    def growth_pages_for(self, growth_tokens: int) -> int:
        """Pages beyond the prompt's that growth_tokens more tokens of answer need.

        Never more than the answer can need: max_tokens and the context bound it, and its last token
        is never computed.
        """
        n_grown = min(self._n_most - self.n_input, growth_tokens)
        return self.pages_for(self.n_input + max(0, n_grown - 1)) - self.n_prompt_pages

    def publish(self, n_tokens: int, pages: PageAllocator) -> None:
        """Index the full pages among the first n_tokens, which a successful step has computed.

        May be called again with more tokens. Pages whose content is indexed already stay private.
        If the engine's pages of answers differ from those of a prompt of the same tokens, only
        prompts are indexed.
        """
        assert n_tokens <= self.n_computed
        if not self.spec.indexes_answers:
            n_tokens = min(n_tokens, self.n_prompt)
        names = self.prompt_hashes if n_tokens == self.n_input else self.chain_hashes(n_tokens)
        for page, name in zip(self.pages, names, strict=False):
            pages.publish(page, name)

    # -- work -------------------------------------------------------------------------------

    def work(self, n_new: int) -> RowWork:
        """Its share of a step: the n_new positions after those in flight; samples if they are the
        last.

        A position past the known tokens takes the token that is being sampled (`follows`).
        """
        start, n_tokens = self.n_computed + self.n_ahead, len(self.token_ids)
        follows = start == n_tokens
        return RowWork(  # positional: keywords take twice as long, for every row of every step
            self.number,
            self.token_ids,
            start,
            n_new,
            self.pages,
            self.n_prompt,
            self.params,
            start + n_new == n_tokens + follows,
            self._sample,
            follows,
        )

    def __repr__(self) -> str:
        return f"Row({self.attempt}, {self.state.value}, {self.n_computed}/{self.n_tokens})"


def by_turn(rows: Iterable[Row]) -> list[Row]:
    """Highest priority first, longest waiting first within one."""
    return sorted(rows, key=attrgetter("turn"))
