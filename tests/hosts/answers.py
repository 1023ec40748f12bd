"""Answers of the bundled model in exact mode, which are the same wherever one thread computes them.

`python -m tests.hosts.answers HOST:PORT` prints those of a cluster.
"""

from __future__ import annotations

import json
import sys

from tests.hosts.fake_hosts import Host
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


def answers_at(host: Host, endpoint: str) -> list[Answer]:
    """As a client there gets them."""
    text = host.run(f"{sys.executable} -m tests.hosts.answers {endpoint}", timeout_s=120)
    return [tuple((token, logprob) for token, logprob in answer) for answer in json.loads(text)]


def one_machines_answers() -> list[Answer]:
    with start_local(prefill=1, decode=1, exact=True, threads=1) as cluster:
        return answers_of(cluster.endpoint)


if __name__ == "__main__":
    print(json.dumps(answers_of(sys.argv[1])))
