"""An engine double for tests of the layers above it: no model, no torch, but it detects wrong
pages.

Every position of a row writes a mark to its page: a hash of all tokens up to and including it. Each
run first reads back the marks of all positions before `start`; a stale, foreign, torn or lost page
fails that row with an error that names the first wrong position. The next token is a hash of all
tokens so far, the seed and the sample index: `expected_answer` computes it without an engine.

    page   | words 0 of all positions | words 1 of all positions |     a mark: two 64-bit words

Marks are placed like the keys and values of one layer and head of the layout, so errors in
converting pages to another page size are detected as well.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from twolane.engine.step import (
    DevicePool,
    DoneStep,
    EngineSpec,
    Page,
    RowResult,
    RowWork,
    SampledToken,
    Step,
)
from twolane.layout import Layout
from twolane.params import SamplingParams

Marks = npt.NDArray[np.uint64]

MARK_BYTES = 16
_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # odd, so that positions map to distinct 64-bit values


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeEngineConfig:
    """The model that the fake imitates, and the simulated cost of its steps."""

    model: str = "fake"
    revision: str = ""  # of its weights: pages and answers of another one differ
    n_pages: int = 1024
    page_tokens: int = 16
    vocab_size: int = 256
    first_token: int = 0  # answers use ids from here to vocab_size
    max_context_tokens: int = 4096
    eos_token_ids: tuple[int, ...] = ()
    echoes: bool = False  # the answer repeats the prompt, instead of hashes
    eos_every_tokens: int = 0  # about one token in this many is the first eos id; 0: none
    step_overhead_s: float = 0.002
    prefill_token_s: float = 20e-6
    decode_row_s: float = 50e-6
    context_token_s: float = 0.05e-6
    is_paced: bool = False  # each step really takes as long as it would cost
    # A fault for tests: no step ends in the process whose id is in this file. Empty: no file.
    hangs_by_file: str = ""

    def __post_init__(self) -> None:
        assert self.n_pages >= 1
        assert self.page_tokens >= 16
        assert self.page_tokens % 16 == 0
        assert 0 <= self.first_token < self.vocab_size
        assert all(0 <= token < self.vocab_size for token in self.eos_token_ids)
        assert not self.eos_every_tokens or self.eos_token_ids, "needs eos_token_ids"
        ordinary = set(range(self.first_token, self.vocab_size)) - set(self.eos_token_ids)
        assert ordinary, "no id remains for ordinary tokens"

    @property
    def page_bytes(self) -> int:
        return self.page_tokens * MARK_BYTES

    @property
    def salt(self) -> int:
        """What the marks of its revision begin with."""
        digest = hashlib.sha256(self.revision.encode()).digest()
        return int.from_bytes(digest[:8]) if self.revision else 0


class FakeEngine:
    """Implements `twolane.engine.step.Engine`. `memory`: a writable buffer to use as the pool, or
    None."""

    def __init__(
        self, config: FakeEngineConfig | None = None, *, memory: memoryview | None = None
    ) -> None:
        self.config = config = config or FakeEngineConfig()
        size = config.n_pages * config.page_bytes
        raw = np.zeros(size, np.uint8) if memory is None else np.frombuffer(memory, np.uint8)
        assert raw.size >= size, f"the pool needs {size} bytes, got {raw.size}"
        assert raw.flags.writeable, "the pool's memory is read-only"
        self.pool = raw[:size].reshape(config.n_pages, config.page_bytes)
        self.device_pool: DevicePool | None = None
        self.steps_ahead = 0
        self._marks: Marks = self.pool.view(np.uint64).reshape(-1, 2, config.page_tokens)
        self.steps = 0
        facts = f"fake {config.model} {config.vocab_size} {config.first_token}"
        facts += f" {config.revision}" * bool(config.revision)
        self.spec = EngineSpec(
            model=config.model,
            fingerprint=hashlib.sha256(facts.encode()).hexdigest(),
            n_pages=config.n_pages,
            page_tokens=config.page_tokens,
            page_bytes=config.page_bytes,
            layout=Layout(
                ranks=1,
                dtype="uint8",
                page_tokens=config.page_tokens,
                layers=1,
                kv_heads=1,
                head_dim=MARK_BYTES // 2,
                whole_kv_heads=1,
            ).to_json(),
            max_context_tokens=config.max_context_tokens,
            vocab_size=config.vocab_size,
            eos_token_ids=config.eos_token_ids,
            exact=True,
        )

    def submit(self, work: Sequence[RowWork]) -> Step:
        """Computes before it returns, so no step is pipelined."""
        begun_s = time.monotonic()
        results = self.run(work)
        if self.config.is_paced:
            time.sleep(max(0.0, begun_s + self.step_time_s(work) - time.monotonic()))
        return DoneStep(results)

    def only_launches(self, work: Sequence[RowWork]) -> bool:
        """It computes."""
        return False

    def run(self, work: Sequence[RowWork]) -> list[RowResult]:
        """Verify, mark and sample each row; faster if `token_ids` is an array, not a list."""
        while self.config.hangs_by_file and _is_named_by(Path(self.config.hangs_by_file)):
            time.sleep(0.02)
        self.steps += 1
        return [self._run_row(row) for row in work]

    def close(self) -> None:
        """Does nothing."""

    def step_time_s(self, work: Sequence[RowWork]) -> float:
        """The simulated duration of this step: a cost model for tests in virtual time."""
        config = self.config
        cost_s = config.step_overhead_s
        for row in work:
            cost_s += config.decode_row_s if row.n_new == 1 else row.n_new * config.prefill_token_s
            cost_s += (row.start + row.n_new) * config.context_token_s
        return cost_s

    def _run_row(self, row: RowWork) -> RowResult:
        config, end = self.config, row.start + row.n_new
        n_pages = -(-end // config.page_tokens)
        if n_pages > len(row.pages) or end > config.max_context_tokens:
            return RowResult(row.row, error=f"{end} positions do not fit {len(row.pages)} pages")
        tokens = np.asarray(row.token_ids, np.int64)
        strays = np.flatnonzero((tokens < 0) | (tokens >= config.vocab_size))
        if strays.size:
            at = int(strays[0])
            return RowResult(row.row, error=f"token {tokens[at]} at position {at} is out of range")
        marks = prefix_marks(tokens, config.salt)
        held = np.asarray(row.pages[:n_pages], np.int64)
        if row.start:
            found = self._marks[held].swapaxes(1, 2).reshape(-1, 2)[: row.start]
            if not np.array_equal(found, marks[: row.start]):
                return RowResult(row.row, error=self._page_error(found, marks, held))
        positions = np.arange(row.start, end)
        pages, slots = held[positions // config.page_tokens], positions % config.page_tokens
        self._marks[pages, :, slots] = marks[row.start : end]
        if not row.sample:
            return RowResult(row.row)
        seed = row.params.seed or 0
        token, draw = _next_token(int(marks[-1, 0]), seed, row.sample_index, config)
        if config.echoes:
            token = int(tokens[end % row.n_prompt])
        return RowResult(row.row, (_with_logprobs(token, draw, row.params, config),))

    def _page_error(self, found: Marks, marks: Marks, held: npt.NDArray[np.int64]) -> str:
        at = int(np.flatnonzero((found != marks[: len(found)]).any(axis=1))[0])
        page = Page(int(held[at // self.config.page_tokens]))
        what = "was never written" if not found[at].any() else "holds something else"
        return f"position {at} of {len(found)} (page {page}) {what}"


def expected_answer(
    prompt: Sequence[int],
    params: SamplingParams,
    n: int,
    *,
    config: FakeEngineConfig | None = None,
    sample_index: int = 0,
) -> list[int]:
    """The n tokens that a FakeEngine of this config answers, ending with its first eos id.

    Of the params only `seed` (None counts as 0) and `ignore_eos` (the answer is then not cut)
    matter.
    """
    config = config or FakeEngineConfig()
    tokens = [int(token) for token in prompt]
    state = int(prefix_marks(np.asarray(tokens, np.int64), config.salt)[-1, 0])
    answer: list[int] = []
    while len(answer) < n:
        token, _ = _next_token(state, params.seed or 0, sample_index, config)
        answer.append(token)
        if token in config.eos_token_ids and not params.ignore_eos:
            break
        state = (state + _mix(token + _STEP * (len(tokens) + len(answer)))) & _MASK
    return answer


def prefix_marks(tokens: npt.NDArray[np.int64], salt: int = 0) -> Marks:
    """The marks of all positions: `[len(tokens), 2]` words that depend on every token up to the
    position, and on the salt.

    A cumulative sum of mixed (token, position) pairs, so that numpy computes all positions at once.
    """
    with np.errstate(over="ignore"):
        place = np.arange(1, len(tokens) + 1, dtype=np.uint64) * np.uint64(_STEP)
        mixed = tokens.astype(np.uint64) + place
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        marks = np.empty((len(tokens), 2), np.uint64)
        np.cumsum(mixed, out=marks[:, 0])
        marks[:, 0] += np.uint64(salt)
        # The second word distinguishes colliding sums, and is never zero: zero is "unwritten".
        np.bitwise_or(marks[:, 0] ^ place, np.uint64(1), out=marks[:, 1])
    return marks


def _is_named_by(file: Path) -> bool:
    return file.exists() and file.read_text(encoding="utf-8").strip() == str(os.getpid())


def _mix(value: int) -> int:
    """The splitmix64 finaliser of one Python integer, as in `prefix_marks`."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _next_token(
    state: int, seed: int, sample_index: int, config: FakeEngineConfig
) -> tuple[int, int]:
    """The token after the prefix whose first mark word is `state`, and the random draw used."""
    draw = _mix(state ^ _mix(seed + _STEP * (sample_index + 1)))
    if config.eos_every_tokens and (draw >> 40) % config.eos_every_tokens == 0:
        return config.eos_token_ids[0], draw
    span = config.vocab_size - config.first_token
    token = config.first_token + draw % span
    while token in config.eos_token_ids:
        token = config.first_token + (token - config.first_token + 1) % span
    return token, draw


def _with_logprobs(
    token: int, draw: int, params: SamplingParams, config: FakeEngineConfig
) -> SampledToken:
    """Invented log-probabilities, a function of the draw: the chosen token is the likeliest."""
    if params.top_logprobs is None:
        return SampledToken(token)
    likeliest = -((draw & 1023) / 1024.0) - 0.125
    n_top = min(params.top_logprobs, config.vocab_size)
    ids = [(token + i) % config.vocab_size for i in range(n_top)]
    top = tuple((other, likeliest - i) for i, other in enumerate(ids))
    return SampledToken(token, likeliest, top)
