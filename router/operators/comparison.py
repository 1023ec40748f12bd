"""What a check of the cluster asks, and how it compares answers: pure.

In exact mode an answer depends on its prompt and its options alone, so two answers are equal to the
last bit of each log-probability, or something is wrong. Otherwise they differ by rounding: then
log-probabilities may differ a little, and answers part where two tokens are about equally likely.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

from twolane.v1 import inference_pb2, sampling_pb2

PROMPTS, MOST_PROMPTS = 4, 64
MAX_TOKENS, MOST_MAX_TOKENS = 32, 1_024
LONGEST_PROMPT = 4_096
LOOSE = 0.25  # by so much log-probabilities may differ where the cluster is not exact
NOT_EXACT = (
    f"these workers do not run in exact mode: log-probabilities are compared to within {LOOSE:g}, "
    "tokens up to the first that others were about as likely as"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of an answer, and of each the log-probabilities of the likeliest."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    tops: tuple[Mapping[int, float], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Difference:
    at: int  # the index of the first token that differs
    text: str


def prompt_lengths(n: int, page_tokens: Sequence[int], most: int) -> list[int]:
    """`n` lengths of at most `most` tokens: just before, at and after the borders of pages of all
    these sizes."""
    lengths = []
    for n_pages in (2, 1, 3, 5, 8):
        for size in sorted({*page_tokens}, reverse=True):
            border = n_pages * size
            lengths += [border, border + 1, border - 1, border + size // 2]
    fitting = [length for length in dict.fromkeys(lengths) if 1 <= length <= most] or [most]
    return list(islice(cycle(fitting), n))


def make_prompts(lengths: Sequence[int], vocab_size: int, seed: int) -> list[list[int]]:
    """Prompts of random tokens, which no cache holds: a new `seed`, new prompts."""
    drawn = random.Random(seed)
    return [[drawn.randrange(vocab_size) for _ in range(length)] for length in lengths]


def sampling(max_tokens: int) -> sampling_pb2.SamplingParams:
    """The likeliest tokens, with log-probabilities, to the full length."""
    return sampling_pb2.SamplingParams(
        max_tokens=max_tokens,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repetition_penalty=1.0,
        seed=0,
        ignore_eos=True,
        top_logprobs=5,
    )


def answer_of(tokens: Sequence[inference_pb2.Token]) -> Answer:
    return Answer(
        tokens=tuple(each.token_id for each in tokens),
        logprobs=tuple(each.logprob for each in tokens),
        tops=tuple({top.token_id: top.logprob for top in each.top_logprobs} for each in tokens),
    )


def difference(reference: Answer, other: Answer, *, exact: bool) -> Difference | None:
    """Where `other` differs from `reference`; None: it is the same, as far as that can be said."""
    for at, (expected, found) in enumerate(zip(reference.tokens, other.tokens, strict=False)):
        gap = abs(reference.logprobs[at] - other.logprobs[at])
        if expected != found:
            as_likely = reference.tops[at].get(found)
            lost = None if as_likely is None else reference.logprobs[at] - as_likely
            if not exact and lost is not None and lost <= LOOSE:
                return None  # about as likely: from here on these are two answers
            return Difference(at, f"token {found} instead of {expected}")
        if gap > (0.0 if exact else LOOSE):
            return Difference(at, f"token {found} is right, its log-probability is {gap:.3g} off")
    if len(reference.tokens) != len(other.tokens):
        n = min(len(reference.tokens), len(other.tokens))
        return Difference(n, f"{len(other.tokens)} tokens instead of {len(reference.tokens)}")
    return None


def choose_reference(answers: Mapping[str, Answer], *, exact: bool) -> str:
    """The worker whose answer agrees with the most others; of equals, the first."""

    def agreeing(name: str) -> int:
        return sum(
            difference(answers[name], other, exact=exact) is None for other in answers.values()
        )

    return max(answers, key=agreeing)


def pairs(
    prefills: Sequence[str], decodes: Sequence[str], only: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Every prefill worker with every decode worker; with `only`, those that have one of them."""
    for prefill in prefills:
        for decode in decodes:
            if prefill != decode and (not only or prefill in only or decode in only):
                yield prefill, decode
