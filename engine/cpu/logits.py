"""Processing of a row's logits before one token is chosen. The order is vLLM's:

    raw logits -> (log-probabilities are read here)
      -> logit bias -> ban of stop tokens (min_tokens)
      -> repetition, then frequency, then presence penalty
      -> greedy ends here -> temperature -> min_p -> top_k -> top_p -> draw

If values tie, the lower token id counts as more likely. All functions work on the array `[vocab]`
of one row, so that nothing depends on other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from twolane.params import SamplingParams

FloatRow = npt.NDArray[np.float32]
BoolRow = npt.NDArray[np.bool_]
_HEAD_DEPTH = np.float32(8)  # e**-8: 128k tokens below it have little mass beside a clear head


def leaves_logits_alone(params: SamplingParams, n_generated: int) -> bool:
    """Whether `adjust` would change nothing."""
    return (
        not params.logit_bias
        and n_generated >= params.min_tokens
        and params.repetition_penalty == 1.0
        and not params.presence_penalty
        and not params.frequency_penalty
    )


def adjust(
    logits: FloatRow,
    params: SamplingParams,
    token_ids: Sequence[int],
    n_prompt: int,
    eos_token_ids: Iterable[int],
) -> None:
    """Apply bias, ban and penalties in place.

    Ids in `token_ids` and in the bias are in the vocabulary; stop ids outside it are ignored.
    """
    for token, bias in params.logit_bias.items():
        logits[token] += np.float32(bias)
    if len(token_ids) - n_prompt < params.min_tokens:
        banned = {*eos_token_ids, *params.stop_token_ids}
        logits[[token for token in banned if token < len(logits)]] = -np.inf
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.asarray(token_ids, np.int64))
        factor = np.float32(params.repetition_penalty)
        values = logits[seen]
        logits[seen] = np.where(values > 0, values / factor, values * factor)
    if params.frequency_penalty or params.presence_penalty:
        answer = np.asarray(token_ids[n_prompt:], np.int64)
        tokens, counts = np.unique(answer, return_counts=True)
        logits[tokens] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
        logits[tokens] -= np.float32(params.presence_penalty)


def temper(logits: FloatRow, temperature: float) -> FloatRow:
    """Logits divided by temperature, shifted so that the highest is 0: a new array."""
    with np.errstate(over="ignore"):  # a tiny temperature correctly sends the others to -inf
        scaled: FloatRow = (logits - logits.max()) / np.float32(max(temperature, 1e-30))
    return scaled


def kept(scaled: FloatRow, params: SamplingParams) -> BoolRow:
    """The tokens that min_p, top_k and top_p keep; at least the likeliest. `scaled`: highest is
    0."""
    keep = np.isfinite(scaled)
    if params.min_p > 0:
        keep &= scaled >= np.float32(np.log(params.min_p))
    if 0 < params.top_k < len(scaled):
        _keep_top_k(scaled, keep, params.top_k)
    if params.top_p < 1:
        _keep_top_p(scaled, keep, params.top_p)
    return keep


def _keep_top_k(scaled: FloatRow, keep: BoolRow, k: int) -> None:
    candidates = np.flatnonzero(keep)
    if len(candidates) <= k:
        return
    values = scaled[candidates]
    least = np.partition(values, -k)[-k]
    above = values > least
    ties = candidates[values == least][: k - int(above.sum())]
    keep[:] = False
    keep[candidates[above]] = True
    keep[ties] = True


def _keep_top_p(scaled: FloatRow, keep: BoolRow, p: float) -> None:
    candidates = np.flatnonzero(keep)
    values = scaled[candidates]
    mass = np.exp(values)
    wanted = p * mass.sum(dtype=np.float64)
    # Sort only the head of the distribution if it holds the wanted mass; with a margin, since sums
    # in a different order round differently.
    is_head = values >= -_HEAD_DEPTH
    if mass[is_head].sum(dtype=np.float64) > wanted * (1 + 1e-9):
        candidates, values, mass = candidates[is_head], values[is_head], mass[is_head]
    order = _likeliest_first(values)
    mass = mass[order]
    before = np.cumsum(mass, dtype=np.float64) - mass
    keep[:] = False
    keep[candidates[order[before < wanted]]] = True
    keep[candidates[order[0]]] = True


def _likeliest_first(values: FloatRow) -> npt.NDArray[np.int64]:
    """`argsort(-values, kind="stable")` of finite values up to 0.

    Without their sign, such floats sort like integers, and numpy sorts integers about twenty times
    as fast as it finds a stable order: value and index are packed into one integer.
    """
    assert not (values > 0).any()
    keys = (np.float32(0) - values).view(np.uint32).astype(np.uint64) << np.uint64(32)
    keys |= np.arange(len(values), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def log_softmax(logits: FloatRow) -> FloatRow:
    """Log-probabilities `[vocab]`, a new float32 array; the sum is computed in float64."""
    shifted = logits - logits.max()
    total = np.exp(shifted).sum(dtype=np.float64)
    result: FloatRow = (shifted - np.float32(np.log(total))).astype(np.float32, copy=False)
    return result


def top_tokens(logprobs: FloatRow, n: int) -> tuple[tuple[int, float], ...]:
    """The n likeliest tokens with their log-probabilities, likeliest first."""
    n = min(n, len(logprobs))
    if n == 0:
        return ()
    least = np.partition(logprobs, -n)[-n]
    candidates = np.flatnonzero(logprobs >= least)
    order = candidates[np.argsort(-logprobs[candidates], kind="stable")][:n]
    return tuple((int(token), float(logprobs[token])) for token in order)
