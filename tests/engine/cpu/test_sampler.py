"""Each sampling parameter against a plain float64 reference, and draws against probabilities."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from twolane.engine.cpu.logits import kept, temper
from twolane.engine.cpu.sampler import Sampler
from twolane.engine.step import Page, RowWork, SampledToken
from twolane.params import SamplingParams

VOCAB, EOS = 50, 2
Row = npt.NDArray[np.float64]


def row_of(params: SamplingParams, tokens: list[int], n_prompt: int, sample: int = 0) -> RowWork:
    n = len(tokens)
    return RowWork(0, tokens, n - 1, 1, [Page(0)], n_prompt, params, True, sample)


def sampled(logits: torch.Tensor, rows: list[RowWork]) -> list[SampledToken]:
    found = Sampler(logits.shape[1], (EOS,)).sample(logits, rows)
    assert all(isinstance(token, SampledToken) for token in found), found
    return [token for token in found if isinstance(token, SampledToken)]


def reference_logits(raw: Row, params: SamplingParams, prompt: list[int], out: list[int]) -> Row:
    x = raw.copy()
    for token, bias in params.logit_bias.items():
        x[token] += bias
    if len(out) < params.min_tokens:
        x[[EOS, *(t for t in params.stop_token_ids if t < len(x))]] = -math.inf
    for token in set(prompt + out):
        penalty = params.repetition_penalty
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
    for token, count in Counter(out).items():
        x[token] -= params.frequency_penalty * count + params.presence_penalty
    return x


def reference_kept(x: Row, params: SamplingParams) -> set[int]:
    """By sorting (value, then id) and counting, one filter after the other."""
    p = np.exp((x - x.max()) / params.temperature)
    ids = sorted(range(len(x)), key=lambda i: (-p[i], i))
    ids = [i for i in ids if p[i] >= params.min_p * p.max() and p[i] > 0]
    ids = ids[: params.top_k] if params.top_k else ids
    left, mass, total = [], 0.0, sum(p[i] for i in ids)
    for i in ids:
        if params.top_p < 1 and mass >= params.top_p * total:
            break
        left.append(i)
        mass += p[i]
    return set(left)


def test_greedy_takes_the_lowest_id_of_equal_ones() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, [7, 9, 30]] = 2.0
    greedy = SamplingParams(temperature=0.0)
    found = sampled(logits, [row_of(greedy, [1], 1)] * 2)
    assert [token.token for token in found] == [7, 0]


ADJUSTMENTS: list[dict[str, Any]] = [
    {"logit_bias": {3: 4.0, 11: -20.0}},
    {"min_tokens": 6, "stop_token_ids": (5, 9, 4000)},
    {"min_tokens": 4, "stop_token_ids": (5,)},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.6},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.9},
    {"frequency_penalty": -1.1, "presence_penalty": -0.5},
    {
        "logit_bias": {EOS: 30.0, 8: 2.0},
        "min_tokens": 6,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.2,
    },
]


@pytest.mark.parametrize("options", ADJUSTMENTS, ids=lambda o: "+".join(o))
def test_bias_bans_and_penalties_match_a_float64_reference(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    params = SamplingParams(temperature=0.0, top_logprobs=4, **options)
    changed = 0
    for _ in range(40):
        raw = rng.normal(size=VOCAB) * 2
        raw[EOS] += 4  # often the likeliest, so that a ban shows
        prompt, out = rng.integers(0, VOCAB, 6).tolist(), rng.integers(0, VOCAB, 4).tolist()
        logits = torch.from_numpy(raw).float()[None]
        expected = reference_logits(raw.astype(np.float32).astype(float), params, prompt, out)
        (token,) = sampled(logits, [row_of(params, prompt + out, len(prompt))])
        assert token.token == int(expected.argmax())
        changed += token.token != int(raw.argmax())
        raw_logprobs = logits[0].double().log_softmax(-1)
        assert token.logprob == pytest.approx(float(raw_logprobs[token.token]), abs=1e-5)
        best = torch.sort(raw_logprobs, descending=True, stable=True)
        assert [i for i, _ in token.top] == best.indices[:4].tolist()
        assert [value for _, value in token.top] == pytest.approx(best.values[:4], abs=1e-5)
    assert options == ADJUSTMENTS[2] or changed > 0, "the parameter made no difference"


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.3},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 5000},
        {"top_p": 0.7},
        {"top_p": 1e-6},
        {"min_p": 0.2},
        {"min_p": 1.0},
        {"top_k": 12, "top_p": 0.8, "min_p": 0.05, "temperature": 1.7},
    ],
    ids=lambda o: "+".join(f"{k}={v}" for k, v in o.items()),
)
def test_filters_keep_what_a_float64_reference_keeps(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(6)
    params = SamplingParams(**options)
    for trial in range(50):
        # Coarse values make ties, which a filter has to cut in order of id.
        raw = rng.normal(size=VOCAB) * 2 if trial % 2 else rng.integers(0, 4, VOCAB).astype(float)
        logits = raw.astype(np.float32)
        found = set(np.flatnonzero(kept(temper(logits, params.temperature), params)).tolist())
        assert found == reference_kept(logits.astype(float), params)


@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_top_p_over_a_large_vocabulary_keeps_what_sorting_all_would(spread: float) -> None:
    params = SamplingParams(top_p=0.9)
    logits = np.random.default_rng(3).normal(size=3000).astype(np.float32) * np.float32(spread)
    logits[::7] = logits[1]  # many ties
    scaled = temper(logits, 1.0)
    found = set(np.flatnonzero(kept(scaled, params)).tolist())
    expected = reference_kept(logits.astype(float), params)
    assert len(found ^ expected) <= 1, "rounding may move the border by one"
    assert min(logits[list(found)]) >= max(np.delete(logits, list(found)))


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 3.0, 60.0])
@pytest.mark.parametrize("top_p", [1e-6, 0.5, 0.95, 0.9999999])
def test_top_p_keeps_to_the_bit_what_a_stable_sort_of_all_keeps(
    spread: float, top_p: float
) -> None:
    rng = np.random.default_rng(8)
    for size, step in ((1, 0.0), (7000, 0.0), (7000, 0.25)):
        logits = (rng.normal(size=size) * spread).astype(np.float32)
        if step:  # coarse values make ties
            logits = (np.round(logits / step) * step).astype(np.float32)
            logits[rng.integers(0, size, size // 3)] = -np.inf
        scaled = temper(logits, 1.0)
        mass = np.exp(scaled)
        order = np.argsort(-scaled, kind="stable")
        before = np.cumsum(mass[order], dtype=np.float64) - mass[order]
        wanted = top_p * mass[np.isfinite(scaled)].sum(dtype=np.float64)
        expected = {int(order[0]), *order[(before < wanted) & (mass[order] > 0)].tolist()}
        found = np.flatnonzero(kept(scaled, SamplingParams(top_p=top_p)))
        assert set(found.tolist()) - set(np.flatnonzero(mass == 0).tolist()) == expected


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.5}, {"top_k": 8}, {"top_p": 0.8}, {"min_p": 0.1}]
)
def test_draws_follow_the_probabilities(options: dict[str, Any]) -> None:
    n = 8000
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(2)) * 1.5
    base = SamplingParams(**options)
    x = logits.double().numpy()
    keep = sorted(reference_kept(x, base))
    p = np.exp((x[keep] - x.max()) / base.temperature)
    expected = n * p / p.sum()
    counts: Counter[int] = Counter()
    for start in range(0, n, 1000):
        rows = [
            row_of(SamplingParams(seed=17, **options), [1] * (1 + start + i), 1)
            for i in range(1000)
        ]
        counts.update(token.token for token in sampled(logits.expand(1000, -1), rows))
    assert set(counts) <= set(keep)
    chi_square = sum((counts[t] - e) ** 2 / e for t, e in zip(keep, expected, strict=True))
    degrees = len(keep) - 1
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees)


def test_a_draw_depends_on_its_row_alone() -> None:
    logits = torch.randn(9, VOCAB, generator=torch.Generator().manual_seed(3))
    rows = [
        row_of(
            SamplingParams(seed=i // 3, top_p=1 - i / 20, top_logprobs=3), [1] * (4 + i), 4, i % 3
        )
        for i in range(9)
    ]
    together = sampled(logits, rows)
    alone = [sampled(logits[i : i + 1], [rows[i]])[0] for i in range(9)]
    backwards = sampled(logits.flip(0), rows[::-1])[::-1]
    assert together == alone == backwards


def test_seed_sample_and_place_in_the_answer_each_move_the_draw() -> None:
    logits = torch.zeros(1, VOCAB)

    def drawn(seed: int, sample: int, place: int, n_prompt: int = 4) -> int:
        row = row_of(SamplingParams(seed=seed), [1] * (n_prompt + place), n_prompt, sample)
        return sampled(logits, [row])[0].token

    for moved in ([drawn(i, 0, 0) for i in range(40)], [drawn(0, i, 0) for i in range(40)]):
        assert len(set(moved)) > 15
    assert len({drawn(0, 0, i) for i in range(40)}) > 15
    assert drawn(5, 1, 7, n_prompt=4) == drawn(5, 1, 7, n_prompt=9)


def test_a_tiny_temperature_is_greedy_without_overflow() -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(3))
    row = row_of(SamplingParams(temperature=1e-38, seed=1), [1], 1)
    assert sampled(logits, [row])[0].token == int(logits.argmax())


def test_a_large_vocabulary_far_below_the_highest_is_left_out_exactly() -> None:
    """Tokens that no noise can lift to the top get none: the draw is as with noise for all."""
    logits = torch.full((1, 4097), -30.0)
    logits[0, [5, 4096]] = 0.0
    found = {sampled(logits, [row_of(SamplingParams(seed=i), [1], 1)])[0].token for i in range(30)}
    assert found == {5, 4096}


def test_a_fault_fails_its_row_alone() -> None:
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(3))
    rows = [row_of(SamplingParams(seed=i), [1], 1) for i in range(5)]
    fine = Sampler(VOCAB, (EOS,)).sample(logits, rows)
    logits[1, 3], logits[2, 4] = math.nan, math.inf
    rows[3] = row_of(SamplingParams(logit_bias={VOCAB: 1.0}), [1], 1)
    found = Sampler(VOCAB, (EOS,)).sample(logits, rows)
    assert found[1] == found[2] == "the model's logits are not finite"
    assert found[3] == "logit_bias names token 50; the vocabulary has 50"
    assert [found[0], found[4]] == [fine[0], fine[4]]


def test_banning_everything_is_an_error() -> None:
    params = SamplingParams(min_tokens=1, stop_token_ids=(0, 1))
    (found,) = Sampler(3, (EOS,)).sample(torch.zeros(1, 3), [row_of(params, [1], 1)])
    assert found == "every token of the vocabulary is banned"


def test_zero_top_logprobs_give_the_chosen_one_alone() -> None:
    (token,) = sampled(torch.zeros(1, 4), [row_of(SamplingParams(top_logprobs=0), [1], 1)])
    assert token.logprob == pytest.approx(math.log(0.25))
    assert token.top == ()
