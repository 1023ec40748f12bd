"""What a worker asks of an engine, and what it gets back: one forward pass over a packed batch.

A row's work in a step, drawn over its token positions:

    0                 start            start + n_new              len(token_ids)
    |---- in pages ----|==== computed now ====|---- later chunks -----|

When `start + n_new == len(token_ids)` and `sample` is set, the engine samples the token at position
`len(token_ids)`; its index in the answer is `len(token_ids) - n_prompt`, and with the seed and the
sample it is the key of the random draw, so that any engine continues any row.

Pages that hold `[start, start + n_new)` are written whole and belong to this row alone; earlier
ones are only read and may be shared.

Steps may be submitted ahead, before the results of those before them are known. A row whose newest
token is still being sampled then `follows` its share of the step submitted just before:

    step k        |-- token n -----> samples token n + 1
    step k + 1    |-- token n + 1, which never left the device -----> samples token n + 2

What is made once a row and step is not frozen: that would take twice as long. Nobody changes it.
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
    meanwhile the caller's lists may grow at their ends.

    Where the row `follows`, the token being sampled comes after `token_ids` and is the one new
    position; the row had a share, sampled and without an error so far, in the step before.
    """

    row: int  # the caller's name for the row, repeated in the result
    token_ids: Sequence[int]  # every token known so far: prompt, then answer
    start: int  # positions before it are in the pages already
    n_new: int  # how many positions to compute now, at least 1
    pages: Sequence[Page]  # page i holds positions [i * page_tokens, (i + 1) * page_tokens)
    n_prompt: int  # where the answer begins (penalties, min_tokens, Philox position)
    params: SamplingParams
    sample: bool  # sample the token after the last known one
    sample_index: int = 0  # which of the request's n samples (a Philox key)
    follows: bool = False  # the newest token is the one that the step before samples for this row
    n_tokens: int = field(init=False)  # of the row: those known now, and the one being sampled

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
        """How many of `token_ids` counted when this was made."""
        return self.n_tokens - self.follows


@dataclass(slots=True)
class SampledToken:
    """One token of an answer; log-probabilities only where `top_logprobs` asked for them."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # (token, log-probability), likeliest first


@dataclass(slots=True)
class RowResult:
    """What a step made of one row: zero or more tokens, or the error that fails this row alone."""

    row: int
    tokens: tuple[SampledToken, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The facts about an engine that the rest of a worker needs; fixed for its life."""

    model: str  # name shown to users
    fingerprint: str  # hex: config, weights revision, quantisation. Unequal sides never pair
    n_pages: int
    page_tokens: int
    page_bytes: int  # of all ranks: their pages of that number, one behind the other
    layout: str  # `twolane.layout.Layout.to_json`
    max_context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    indexes_answers: bool = True  # pages of answers are as good as those of prompts (see prefix)
    max_step_rows: int = 1 << 20  # that one step may have, of decode and prefill together


@dataclass(frozen=True, slots=True)
class DevicePool:
    """A pool in the memory of GPUs: one part, or one a rank. Each is one raw allocation, so that it
    can be exported to a process; page p is page p of every part, in the order of the ranks."""

    device: int  # ordinal in this process; of rank 0
    addresses: tuple[int, ...]  # of page 0 of each part, as mapped in this process
    n_bytes: int  # of one part
    exports: tuple[bytes, ...] = ()  # how others map them; empty: one part, this process's own


Mark = object  # on a device: work of other streams may be told to wait for it


class Step(Protocol):
    """A step that was submitted."""

    @property
    def written(self) -> Mark | None:
        """Passed once all that the step writes into pages is there. None: its result tells."""
        ...

    def result(self) -> list[RowResult]:
        """One result a row, in order; blocks until they are there. On any thread, once."""
        ...


@dataclass(frozen=True, slots=True)
class DoneStep:
    """The `Step` of an engine that computes while it is asked."""

    results: list[RowResult]
    written: Mark | None = None

    def result(self) -> list[RowResult]:
        return self.results


@runtime_checkable
class Engine(Protocol):
    """A model with its KV pool. Not thread-safe: one call at a time, on any thread; results of
    steps may be waited for meanwhile, on another."""

    spec: EngineSpec
    pool: ByteArray  # [n_pages, page_bytes], the pool's own memory (writable view, no copy)
    device_pool: DevicePool | None  # where pages are on GPUs; `pool` then is [0, page_bytes]
    steps_ahead: int  # steps that may be submitted before the results of one are taken

    def submit(self, work: Sequence[RowWork]) -> Step:
        """Start one packed batch: write its keys and values into `pages`; sample where asked.

        Steps are computed in the order of submission. A fault in one row (non-finite logits, an id
        out of range) is that row's `error`; the others' tokens do not change.
        """
        ...

    def run(self, work: Sequence[RowWork]) -> list[RowResult]:
        """`submit` and wait: one result a row, in order."""
        ...

    def close(self) -> None:
        """Give the pool's memory back. May be called twice."""
        ...


def row_error(row: RowWork, spec: EngineSpec) -> str:
    """Why no engine can compute the row at all, or nothing: asked before anything is computed."""
    end = row.start + row.n_new
    if end > spec.max_context_tokens:
        return f"{end} tokens exceed the context of {spec.max_context_tokens}"
    n_pages = -(-end // spec.page_tokens)
    if len(row.pages) < n_pages:
        return f"{end} tokens need {n_pages} pages, the row has {len(row.pages)}"
    pages = row.pages[:n_pages]
    if min(pages) < 0 or max(pages) >= spec.n_pages:
        return f"a page of the row is not of this pool of {spec.n_pages}"
    tokens = row.token_ids[row.start : min(end, row.n_known)]
    if len(tokens) and (min(tokens) < 0 or max(tokens) >= spec.vocab_size):
        return f"a token of the row is outside the vocabulary of {spec.vocab_size}"
    return ""
