"""A router and several scripted workers under seeded random faults: every request ends with exactly
the expected tokens or one typed error, and nothing stays in the router's tables."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from twolane.errors import CancelledError, DeadlineError, TwolaneError, UnavailableError
from twolane.router.config import AdmissionConfig, DispatchConfig, RouterConfig
from twolane.router.router import Router
from twolane.router.store import LocalStore
from twolane.router.testing.client import ask, client_of, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.v1 import cluster_pb2

CLUSTERS = [("p0", "p1", "d0", "d1"), ("b0", "b1"), ("p0", "d0"), ("p0", "b0", "d0")]
TENANTS = ("", "red", "blue")
SLO = cluster_pb2.ScalerStatus(ttft_s=0.2, gap_s=0.02)
CONFIG = RouterConfig(
    dispatch=DispatchConfig(max_failures=12),
    admission=AdmissionConfig(growth_reserve_tokens=8, extra_rows=2, unavailable_after_s=20.0),
)


def fault(rng: random.Random, cluster: ScriptedCluster) -> None:
    """One thing goes wrong somewhere."""
    worker = rng.choice(list(cluster.workers.values()))
    worker_id = worker.address.worker_id
    kind = rng.choice(
        ["kill", "restart", "cut", "freeze", "full", "preempt", "refuse", "twice", "lose"]
    )
    if kind == "kill":
        worker.kill()
        loop = asyncio.get_running_loop()
        loop.call_later(rng.uniform(0.05, 5), cluster.start_worker, worker_id)
    elif kind == "restart":
        worker.kill()
        cluster.start_worker(worker_id)
    elif kind == "cut":
        worker.cut()
    elif kind == "freeze":
        worker.freeze()
        asyncio.get_running_loop().call_later(rng.uniform(0.1, 5), worker.thaw)
    elif kind in ("full", "refuse"):
        name, bad, good = {"full": ("is_full", True, False), "refuse": ("refuses", "busy", "")}[
            kind
        ]
        setattr(worker, name, bad)
        worker.later(rng.uniform(0.05, 1), setattr, worker, name, good)
    elif kind == "twice":
        worker.repeats = 2
        worker.later(0.3, setattr, worker, "repeats", 1)
    elif kind == "lose":  # a link loses nothing but what was under way when it broke
        worker.loses = lambda response: rng.random() < 0.2
        worker.later(0.2, setattr, worker, "loses", lambda response: False)
        worker.later(0.2, worker.cut)
    elif worker.rows:
        worker.preempt_at[rng.choice(list(worker.rows.values())).assign.request_id] = rng.randrange(
            1, 30
        )


@pytest.mark.parametrize("seed", range(60))
def test_every_request_ends_exact_or_with_one_typed_error(seed: Any) -> None:
    rng = random.Random(seed)
    ends: list[TwolaneError | None] = []
    output_tokens: Counter[str] = Counter()

    async def one(router: Router, n: int) -> None:
        await asyncio.sleep(rng.uniform(0, 4))
        prompt = [rng.randrange(1, 1000) for _ in range(rng.randint(1, 60))]
        n_tokens = rng.randint(1, 40)
        kind = rng.random()
        outcome = await ask(
            router,
            message(prompt, request_id=f"r{n}", max_tokens=n_tokens, priority=rng.randint(-2, 2)),
            caller=client_of(tenant := TENANTS[n % 3]),
            time_left_s=rng.uniform(0.05, 3) if kind < 0.1 else None,
            leave_after=rng.randint(0, n_tokens) if kind > 0.9 else None,
        )
        output_tokens[tenant] += len(outcome.tokens)
        expected = expected_answer(prompt, n_tokens)
        assert outcome.tokens == expected[: len(outcome.tokens)]
        if outcome.error is None and kind <= 0.9:
            assert outcome.tokens == expected
            assert outcome.ledger.output_tokens == n_tokens
        assert outcome.error is None or isinstance(
            outcome.error, DeadlineError | UnavailableError | CancelledError
        ), outcome.error
        assert not isinstance(outcome.error, DeadlineError) or kind < 0.1
        ends.append(outcome.error)

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        async def faults() -> None:
            for _ in range(rng.randint(1, 12)):
                await asyncio.sleep(rng.expovariate(3))
                fault(rng, cluster)
                if seed % 2:  # an SLO comes and goes, as controllers do
                    told = rng.choice([SLO, SLO, None])
                    report = cluster_pb2.SuperviseRequest(controller_id="c", scaler=told)
                    router.operations.supervise(report)
                router.check_integrity()

        async with asyncio.timeout(300), asyncio.TaskGroup() as group:
            group.create_task(faults())
            for n in range(30):
                group.create_task(one(router, n))
        board = router._dispatcher.board
        assert not board.requests
        assert not board._at
        assert not board.rows
        assert not len(board.queue)
        assert not router._deliveries._open
        assert not board.labels
        assert isinstance(board.store, LocalStore)
        assert not len(board.store)
        for account in board.accounts:
            assert not account.n_live
            # what a client that left did not read has been computed for it all the same
            assert account.counters["output_tokens"] >= output_tokens[account.tenant]
        await asyncio.sleep(6)  # the frozen thaw, the killed are back
        outcome = await ask(router, message([1, 2, 3], max_tokens=5))
        assert outcome.tokens == expected_answer([1, 2, 3], 5), "the cluster works as before"

    play(script, CLUSTERS[seed % len(CLUSTERS)], config=CONFIG, clean_after_s=4.0)
    assert len(ends) == 30
    assert ends.count(None) >= 20, "faults are the exception, or this shows nothing"
