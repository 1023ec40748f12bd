"""Chooses a token for each row of a step's logits, each row independently.

A draw is the maximum of logits plus Gumbel noise: no sort, no cumulative sum. The noise of token t
is a function of (seed, sample index, index in the answer, t), so that any worker that has the
tokens so far draws the same next token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from twolane.engine.cpu.logits import (
    BoolRow,
    FloatRow,
    adjust,
    kept,
    leaves_logits_alone,
    log_softmax,
    temper,
    top_tokens,
)
from twolane.engine.cpu.philox import token_bits, uniform
from twolane.engine.step import RowWork, SampledToken

# Noise of 23 bits is in (-2.82, 16.64): a token further below the highest is never drawn.
NOISE_SPAN = np.float32(19.5)


class Sampler:
    """Samples rows of one vocabulary; holds no state of requests."""

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)

    def sample(self, logits: torch.Tensor, rows: Sequence[RowWork]) -> list[SampledToken | str]:
        """One token, or one error text, for each row of logits `[len(rows), vocab]` float32.

        An error (non-finite logits, a bias or token outside the vocabulary) concerns its row only.
        """
        # One fast pass: a sum is finite only if all its terms are.
        finite = torch.isfinite(logits.sum(dim=-1)).tolist()
        highest = torch.argmax(logits, dim=-1).tolist()  # among equals the first: the lowest id
        return [
            self._sample_row(logits[i].numpy(), highest[i], row)
            if finite[i]
            else "the model's logits are not finite"
            for i, row in enumerate(rows)
        ]

    def _sample_row(self, raw: FloatRow, highest: int, row: RowWork) -> SampledToken | str:
        params, n_generated = row.params, len(row.token_ids) - row.n_prompt
        logits = raw
        if not leaves_logits_alone(params, n_generated):
            error = self._check_ids(row)
            if error:
                return error
            logits = raw.copy()
            adjust(logits, params, row.token_ids, row.n_prompt, self._eos_token_ids)
            highest = int(np.argmax(logits))
            if logits[highest] == -np.inf:
                return "every token of the vocabulary is banned"
        token = highest if params.is_greedy else _draw(logits, row, n_generated)
        if params.top_logprobs is None:
            return SampledToken(token)
        logprobs = log_softmax(raw.copy())
        return SampledToken(
            token, float(logprobs[token]), top_tokens(logprobs, params.top_logprobs)
        )

    def _check_ids(self, row: RowWork) -> str:
        tokens = np.asarray(row.token_ids, np.int64)
        if tokens.min() < 0 or tokens.max() >= self.vocab_size:
            return f"a token of the row is outside the vocabulary of {self.vocab_size}"
        strays = [token for token in row.params.logit_bias if token >= self.vocab_size]
        if strays:
            return f"logit_bias names token {strays[0]}; the vocabulary has {self.vocab_size}"
        return ""


def _draw(logits: FloatRow, row: RowWork, n_generated: int) -> int:
    """The token with the highest sum of tempered logit and noise; among equals, the lowest id."""
    scaled = temper(logits, row.params.temperature)
    keep = kept(scaled, row.params) & (scaled > -NOISE_SPAN)
    candidates = np.flatnonzero(keep)
    if len(candidates) == 1:
        return int(candidates[0])
    noise = _gumbel(keep, row, n_generated)
    return int(candidates[np.argmax(scaled[candidates] + noise)])


def _gumbel(keep: BoolRow, row: RowWork, n_generated: int) -> FloatRow:
    """Noise for the tokens in `keep`, in order of id; drawn in groups of four that contain one."""
    fours = np.zeros(-(-len(keep) // 4) * 4, np.bool_)
    fours[: len(keep)] = keep
    by_group = fours.reshape(-1, 4)
    groups = np.flatnonzero(by_group.any(axis=1))
    bits = token_bits(
        groups,
        seed=row.params.seed or 0,
        sample_index=row.sample_index,
        position=n_generated,
    )
    noise: FloatRow = -np.log(-np.log(uniform(bits[by_group[groups]])))
    return noise
