"""What a row keeps at hand for each step says the same as what it was made from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.fake import FakeEngine, FakeEngineConfig
from engine.step import SampledToken
from twolane.params import SamplingParams
from twolane.v1 import worker_pb2
from worker.attempt_id import AttemptId
from worker.news import News
from worker.rows import Row
from worker.stop import GOES_ON, finish_reason

SPEC = replace(
    FakeEngine(FakeEngineConfig(n_pages=4, eos_token_ids=(9,))).spec, max_context_tokens=12
)
P, D = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE


def row(params: SamplingParams, n_prompt: int = 4) -> Row:
    key = worker_pb2.AttemptKey(submission_id="r", attempt=1)
    assign = worker_pb2.Assign(key=key, token_ids=[1] * n_prompt, n_prompt=n_prompt, sample=3)
    return Row(assign, params, SPEC, number=1, arrived_s=0.0)


@pytest.mark.parametrize("last", [5, 7, 9])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=5),
        SamplingParams(max_tokens=5, ignore_eos=True, stop_token_ids=(7,)),
        SamplingParams(max_tokens=50, min_tokens=3, stop_token_ids=(7,)),
    ],
)
def test_row_ends_where_the_rule_says(params: SamplingParams, last: int) -> None:
    for n_before in range(params.max_tokens or 0):
        one = row(params)
        said = [one.append(5) for _ in range(n_before)]
        if any(said):
            assert n_before in (5, 8), "a plain token ends an answer for its length alone"
            return
        facts = {"n_answer": n_before + 1, "n_tokens": one.n_tokens + 1}
        rule = finish_reason(last_token=last, params=params, spec=SPEC, **facts)
        assert one.append(last) == rule, f"after {n_before} tokens"


def test_each_token_is_told_under_the_attempt_that_the_row_has_then() -> None:
    one, news = row(SamplingParams()), News()
    one.append(5)
    news.token(one, SampledToken(5), P, GOES_ON)
    one.attempt = AttemptId("r", 2)
    one.append(6)
    news.token(one, SampledToken(6, -0.5, ((6, -0.5),)), D, GOES_ON)
    one.append(7)
    news.token(one, SampledToken(7), D, GOES_ON)
    told = [event for event in news.take() if isinstance(event, worker_pb2.TokenEvent)]
    assert [event.key.attempt for event in told] == [1, 2, 2]
    assert [event.role for event in told] == [P, D, D]
    assert [(event.index, event.token_id, event.sample) for event in told] == [
        (0, 5, 3),
        (1, 6, 3),
        (2, 7, 3),
    ]
    assert [event.HasField("logprob") for event in told] == [False, True, False]
    assert [len(event.top_logprobs) for event in told] == [0, 1, 0], "nothing is left of another's"
