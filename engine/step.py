"""The interface between a worker and an engine: one forward pass over a packed batch.

A row's work in a step, drawn over its token positions:

    0                 start            start + n_new              len(token_ids)
    |---- in pages ----|==== computed now ====|---- later chunks -----|

When `start + n_new == len(token_ids)` and `sample` is set, the engine samples the token at position
`len(token_ids)`. Its index in the answer is `len(token_ids) - n_prompt`; with the seed and the
sample index it is the key of the random draw, so that any engine can continue any row.

Pages that hold `[start, start + n_new)` are written whole and belong to this row only; earlier
pages are only read and may be shared.

Steps may be pipelined: submitted before the results of earlier ones are known. A row whose newest
token is still being sampled then `follows` its share of the step submitted just before:

    step k        |-- token n -----> samples token n + 1
    step k + 1    |-- token n + 1, which never left the device -----> samples token n + 2

Classes instantiated for every row and step are not frozen, which would take twice as long; still,
they are never modified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NewType, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from twolane.params import SamplingParams

Page = NewType("Page", int)  # opaque outside the pool: hold it, compare it, never compute with it
IntArray = npt.NDArray[np.int32]
ByteArray = npt.NDArray[np.uint8]


@dataclass(slots=True)
class RowWork:
    """One row's share of a step. The engine reads it during `submit` only and keeps no reference;
    the caller's lists may grow at their ends meanwhile.

    If the row `follows`, the token being sampled comes after `token_ids` and is the one new
    position; the row's share of the previous step samples it, and has no error so far.
    """

    row: int  # the caller's number for the row, repeated in the result
    token_ids: Sequence[int]  # every token known so far: prompt, then answer
    start: int  # earlier positions are already in the pages
    n_new: int  # how many positions to compute now, at least 1
    pages: Sequence[Page]  # page i holds positions [i * page_tokens, (i + 1) * page_tokens)
    n_prompt: int  # where the answer begins (penalties, min_tokens, Philox position)
    params: SamplingParams
    sample: bool  # sample the token after the last known one
    sample_index: int = 0  # which of the request's n samples (a Philox key)
    follows: bool = False  # the newest token is being sampled by the previous step
    n_tokens: int = field(init=False)  # known tokens, plus the one being sampled

    def __post_init__(self) -> None:
        n_known = len(self.token_ids)
        self.n_tokens = n_tokens = n_known + self.follows
        end = self.start + self.n_new
        assert self.n_new >= 1
        assert self.start >= 0
        assert end <= n_tokens
        assert not self.sample or end == n_tokens, "only the end of a row is sampled"
        assert 1 <= self.n_prompt <= n_known
        assert not self.follows or (self.n_new == 1 and end == n_tokens)

    @property
    def n_known(self) -> int:
        """How many of `token_ids` existed when this was created."""
        return self.n_tokens - self.follows


@dataclass(slots=True)
class SampledToken:
    """One token of an answer; log-probabilities only if `top_logprobs` requests them."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # (token, log-probability), likeliest first


@dataclass(slots=True)
class RowResult:
    """A step's result for one row: zero or more tokens, or an error that fails only this row."""

    row: int
    tokens: tuple[SampledToken, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The facts about an engine that the rest of a worker needs; fixed for its life."""

    model: str  # name shown to users
    fingerprint: str  # hex: config, weights revision, quantisation; equal for paired workers
    n_pages: int
    page_tokens: int
    page_bytes: int  # of all ranks: the concatenation of their pages
    layout: str  # `twolane.layout.Layout.to_json`
    max_context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    indexes_answers: bool = True  # whether pages of answers may be indexed (see prefix)
    max_step_rows: int = 1 << 20  # per step, decode and prefill together
    exact: bool = False  # a row's tokens depend on its tokens and parameters only


@dataclass(frozen=True, slots=True)
class DevicePool:
    """A pool in GPU memory: one part, or one per rank. Each part is one raw allocation, so that it
    can be exported to a process; page p is page p of every part, in rank order."""

    device: int  # rank 0's ordinal in this process
    addresses: tuple[int, ...]  # of page 0 of each part, as mapped in this process
    n_bytes: int  # of one part
    exports: tuple[bytes, ...] = ()  # handles for other processes; empty: one part, our own


Mark = object  # a device event, which other streams can wait for


class Step(Protocol):
    """A submitted step."""

    @property
    def written(self) -> Mark | None:
        """The event after which everything that the step writes to pages is there. None: use its
        result."""
        ...

    def result(self) -> list[RowResult]:
        """One result per row, in order; blocks until they are there. May be called once, on any
        thread."""
        ...


@dataclass(frozen=True, slots=True)
class DoneStep:
    """The `Step` of an engine that computes during `submit`."""

    results: list[RowResult]
    written: Mark | None = None

    def result(self) -> list[RowResult]:
        return self.results


@runtime_checkable
class Engine(Protocol):
    """A model with its KV pool. Not thread-safe: one call at a time, on any thread; another thread
    may wait for results of steps meanwhile."""

    spec: EngineSpec
    pool: ByteArray  # [n_pages, page_bytes], the pool's own memory (writable view, no copy)
    device_pool: DevicePool | None  # for pages on GPUs; `pool` is then [0, page_bytes]
    steps_ahead: int  # pipelined steps: submitted before the results of an earlier one are read

    def submit(self, work: Sequence[RowWork]) -> Step:
        """Start one packed batch: write its keys and values to `pages`; sample if requested.

        Steps are computed in the order of submission. A fault of one row (non-finite logits, an id
        out of range) is that row's `error`; the other rows' tokens do not change.
        """
        ...

    def only_launches(self, work: Sequence[RowWork]) -> bool:
        """Whether `submit` of that batch, if no row has an error, does no more than launch it:
        nothing is compiled or computed, and no other process is waited for. So an event loop may
        call it."""
        ...

    def run(self, work: Sequence[RowWork]) -> list[RowResult]:
        """`submit` and wait: one result per row, in order."""
        ...

    def close(self) -> None:
        """Free the pool's memory. May be called twice."""
        ...


def row_error(row: RowWork, spec: EngineSpec) -> str:
    """Why no engine can compute the row, or an empty string; checked before anything is
    computed."""
    end = row.start + row.n_new
    if end > spec.max_context_tokens:
        return f"{end} tokens exceed the context of {spec.max_context_tokens}"
    n_pages = -(-end // spec.page_tokens)
    if len(row.pages) < n_pages:
        return f"{end} tokens need {n_pages} pages, the row has {len(row.pages)}"
    pages = row.pages[:n_pages]
    if min(pages) < 0 or max(pages) >= spec.n_pages:
        return f"a page of the row is not in this pool of {spec.n_pages}"
    tokens = row.token_ids[row.start : min(end, row.n_known)]
    if len(tokens) and (min(tokens) < 0 or max(tokens) >= spec.vocab_size):
        return f"a token of the row is outside the vocabulary of {spec.vocab_size}"
    return ""
