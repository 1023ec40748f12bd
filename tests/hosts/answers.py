"""Answers of the bundled model in exact mode, which are the same wherever they are computed."""

from __future__ import annotations

from twolane.client import Client
from twolane.testing.local import start_local

_PROMPTS = (
    "Once upon a time",
    "The old lighthouse keeper climbed the stairs and " * 6,
    "a",
)

Answer = tuple[tuple[int, float | None], ...]


def answers_of(endpoint: str) -> list[Answer]:
    """Token ids and log-probabilities."""
    found = []
    with Client(endpoint) as client:
        for seed, prompt in enumerate(_PROMPTS):
            done = client.generate(
                prompt, max_tokens=40, temperature=0.8, seed=seed, top_logprobs=1, ignore_eos=True
            )
            found.append(tuple((token.token_id, token.logprob) for token in done.tokens))
    return found


def one_machines_answers() -> list[Answer]:
    with start_local(prefill=1, decode=1, exact=True) as cluster:
        return answers_of(cluster.endpoint)
