"""The recall benchmark's backend for our own engine, with the dtypes that it serves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from twolane.engine.config import EngineConfig
from twolane.engine.load import load_engine
from twolane.engine.step import Page, RowWork, SampledToken
from twolane.params import SamplingParams

STEP_TOKENS = 8192  # most positions of a step
GREEDY = SamplingParams(temperature=0.0, top_logprobs=0)
FORCED = 100.0  # a bias that forces a token; log-probabilities are computed before it


class EngineBackend:
    """A `benchmarks.engine.recall_backends.Backend`: prompts in chunks, answers by decode steps."""

    def __init__(self, config: EngineConfig, batch_rows: int, end: int) -> None:
        self.name = f"twolane {config.dtype}, weights {config.weights}, kv {config.kv_dtype}"
        self.batch_rows = batch_rows
        self.end = end
        self._engine = load_engine(config)
        self.name += f" on {config.device}"

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """See `Backend`."""
        answers: list[list[int]] = [[] for _ in prompts]
        for batch in self._batches([len(prompt) + max_tokens for prompt in prompts]):
            held = self._pages([len(prompts[i]) + max_tokens for i in batch])
            rows = {
                i: RowWork(i, prompts[i], 0, len(prompts[i]), pages, len(prompts[i]), GREEDY, True)
                for i, pages in zip(batch, held, strict=True)
            }
            while rows:
                for i, token in self._run(list(rows.values())).items():
                    answers[i].append(token.token)
                    work = rows.pop(i)
                    if token.token != self.end and len(answers[i]) < max_tokens:
                        tokens = [*work.token_ids, token.token]
                        rows[i] = _next(work, tokens, work.params)
        return answers

    def logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Backend`: each token is forced by a bias, one decode step per token."""
        results: list[list[float]] = [[] for _ in sequences]
        for batch in self._batches([len(sequence) for sequence in sequences]):
            held = self._pages([len(sequences[i]) for i in batch])
            rows = {
                i: RowWork(i, sequences[i][:1], 0, 1, pages, 1, _forced(sequences[i][1]), True)
                for i, pages in zip(batch, held, strict=True)
            }
            while rows:
                for i, token in self._run(list(rows.values())).items():
                    assert token.logprob is not None
                    results[i].append(token.logprob)
                    work, known = rows.pop(i), len(results[i]) + 1
                    assert token.token == sequences[i][known - 1], "a bias did not decide"
                    if known < len(sequences[i]):
                        forced = _forced(sequences[i][known])
                        rows[i] = _next(work, sequences[i][:known], forced)
        return results

    def close(self) -> None:
        self._engine.close()

    def _batches(self, lengths: list[int]) -> Iterable[list[int]]:
        """Indices, longest first, as many at a time as the pool has pages for."""
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        batch: list[int] = []
        used = 0
        for i in order:
            n_pages = -(-lengths[i] // self._engine.spec.page_tokens)
            if batch and (len(batch) == self.batch_rows or used + n_pages > self._n_pages):
                yield batch
                batch, used = [], 0
            batch.append(i)
            used += n_pages
        if batch:
            yield batch

    @property
    def _n_pages(self) -> int:
        return self._engine.spec.n_pages

    def _pages(self, lengths: list[int]) -> list[list[Page]]:
        pages, at = [], 0
        for length in lengths:
            n_pages = -(-length // self._engine.spec.page_tokens)
            pages.append([Page(at + i) for i in range(n_pages)])
            at += n_pages
        return pages

    def _run(self, work: list[RowWork]) -> dict[int, SampledToken]:
        """One token of each row, in steps of at most STEP_TOKENS positions."""
        found: dict[int, SampledToken] = {}
        at = 0
        while at < len(work):
            step = [work[at]]
            while at + len(step) < len(work):
                following = work[at + len(step)]
                if sum(row.n_new for row in step) + following.n_new > STEP_TOKENS:
                    break
                step.append(following)
            at += len(step)
            for result in self._engine.run(step):
                assert not result.error, result.error
                (found[result.row],) = result.tokens
        return found


def _forced(token: int) -> SamplingParams:
    return replace(GREEDY, logit_bias={token: FORCED})


def _next(work: RowWork, tokens: Sequence[int], params: SamplingParams) -> RowWork:
    """The row's share after `work`, with the last of `tokens` as its token."""
    start = len(work.token_ids)
    return RowWork(work.row, tokens, start, 1, work.pages, work.n_prompt, params, True)
