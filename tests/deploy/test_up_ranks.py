"""A worker that computes on several ranks, as a user runs it; on a CPU its ranks are processes."""

from __future__ import annotations

import psutil

from tests.cluster.exact_runner import Probe, lone_answer
from tests.own_time import own_time
from tests.processes import is_alive
from twolane.testing import LocalCluster, start_local

OPTIONS = {
    "colocated": 1, "device": "cpu", "pages": 64, "max_context_tokens": 512,
    "start_timeout_s": 200,
}  # fmt: skip
PROMPT = tuple(range(7, 60, 2))
N_TOKENS = 16


def tokens(cluster: LocalCluster) -> tuple[int, ...]:
    with cluster.client() as client:
        completion = client.generate(
            token_ids=PROMPT, max_tokens=N_TOKENS, temperature=0, ignore_eos=True
        )
    return completion.token_ids


def ranks_of(cluster: LocalCluster) -> list[psutil.Process]:
    return psutil.Process(cluster.pid("colocated-0")).children()


def test_a_worker_on_two_ranks_says_what_one_says_and_is_whole_again_after_a_death() -> None:
    alone = lone_answer("float32", Probe(PROMPT, None, N_TOKENS), exact=False)
    expected = tuple(token.token_id for token in alone)
    with start_local(tensor_parallel=2, launcher="process", **OPTIONS) as cluster:  # type: ignore[arg-type]
        assert tokens(cluster) == expected
        worker, ranks = psutil.Process(cluster.pid("colocated-0")), ranks_of(cluster)
        assert len(ranks) == 2
        n_events = len(cluster.events)
        with own_time() as took:
            ranks[1].kill()  # while nothing runs
            cluster.wait_for("died", "colocated-0", after=n_events)
        assert took.s() < 10
        assert not any(map(is_alive, (worker, *ranks)))
        cluster.wait_for("started", "colocated-0", after=n_events, timeout_s=200)
        assert tokens(cluster) == expected
        ranks = ranks_of(cluster)
        assert len(ranks) == 2
    assert not any(map(is_alive, ranks))
