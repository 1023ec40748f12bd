"""Workers killed under load: what counts as a loss, and that a real cluster has none."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.cluster.kills_run import Answer, Kill, KillsConfig, KillsRun, Outcome
from twolane.testing import start_local

KILL = Kill(worker="d", role="decode", at_s=1.0, requests=2, down_s=3.0, tokens=9, silence_s=0.1)
CONFIG = KillsConfig(n_kills=1)


def outcome_of(kill: Kill = KILL, calm: tuple[int, ...] = (1, 2), attempts: int = 2) -> Outcome:
    return Outcome(
        kills=[kill, kill],
        answers={0: Answer((1, 2), attempts, ())},
        calm={0: Answer(calm, 1, ())},
    )


def test_equal_tokens_and_empty_books_are_no_problem() -> None:
    assert outcome_of().problems(CONFIG) == []


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (outcome_of(calm=(1, 3)), "other tokens"),
        (outcome_of(attempts=1), "no kill cost"),
        (outcome_of(dataclasses.replace(KILL, tokens=0)), "no request was served"),
    ],
)
def test_what_was_lost_is_told(outcome: Outcome, problem: str) -> None:
    assert any(problem in text for text in outcome.problems(CONFIG))


def test_missing_kills_failures_and_left_pages_are_told() -> None:
    outcome = outcome_of()
    outcome.kills.pop()
    outcome.failed.append("request 3: UnavailableError")
    outcome.left.append("prefill-0 has pages")
    outcome.calm.clear()
    assert len(outcome.problems(CONFIG)) == 4


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("n_kills", [1, 5])
async def test_killed_workers_cost_no_request_and_no_token(n_kills: int) -> None:
    config = KillsConfig(
        n_kills=n_kills,
        n_requests=12,
        in_flight=4,
        prompt_tokens=(200, 40),
        output_tokens=(160,),
        together=True,
    )
    with start_local(
        prefill=2, decode=2, exact=True, device="cpu", threads=1, step_tokens=40
    ) as cluster:
        outcome = await KillsRun(cluster, config).run()
    assert outcome.problems(config) == []
