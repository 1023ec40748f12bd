"""What a row keeps at hand for each step says the same as what it was made from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.engine.step import SampledToken
from twolane.params import SamplingParams
from twolane.rpc.columns import ColumnWriter
from twolane.testing.heard import HeardToken, heard
from twolane.v1 import sampling_pb2, worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.attempts.attempt_log import ROLES, AttemptLog
from twolane.worker.attempts.registry import Registry
from twolane.worker.config import SessionConfig
from twolane.worker.finish import GOES_ON, finish_reason
from twolane.worker.rows import Row

SPEC = replace(
    FakeEngine(FakeEngineConfig(n_pages=4, eos_token_ids=(9,))).spec, max_context_tokens=12
)
P, D = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE
TARGET = worker_pb2.WorkerAddress(worker_id="d2", epoch=7)


LENGTH = sampling_pb2.FINISH_REASON_LENGTH


class Listener:
    """Hears what a session would send."""

    def __init__(self) -> None:
        self.tokens = {role: ColumnWriter(role) for role in ROLES}
        self.next_number, self.confirmed = 1, 0

    def send(self, response: worker_pb2.SessionResponse, now: float) -> None:
        raise AssertionError("a log sends nothing itself")


def row(params: SamplingParams, listener: Listener | None = None, n_prompt: int = 4) -> Row:
    key = worker_pb2.AttemptKey(submission_id="r", attempt=1)
    assign = worker_pb2.Assign(
        key=key, row=7, roles=[P], token_ids=[1] * n_prompt, n_prompt=n_prompt, sample=3
    )
    log = AttemptLog.of(assign, listener)
    return Row(assign, params, SPEC, number=1, arrived_s=0.0, log=log)


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


def test_each_token_is_told_under_the_number_that_the_row_has_then() -> None:
    registry, listener = Registry(SessionConfig()), Listener()
    one = row(SamplingParams(), listener)
    assert registry.admit(one.log) is None
    one.append(5)
    one.log.first_token(P, 0, SampledToken(5), GOES_ON)
    successor = registry.successor(one.attempt, AttemptId("r", 2), TARGET, [P], row=8)
    one.tell(successor)
    one.append(6)
    one.log.first_token(P, 1, SampledToken(6, -0.5, ((6, -0.5),)), GOES_ON)
    one.append(7)
    one.log.first_token(D, 2, SampledToken(7), LENGTH)
    told = heard(writer.take() for writer in listener.tokens.values())
    assert told == [
        HeardToken(P, 7, 0, 5),
        HeardToken(P, 8, 1, 6, GOES_ON, (-0.5, ((6, -0.5),))),
        HeardToken(D, 8, 2, 7, LENGTH),
    ]
    (to_p, to_d), _ = one.log.since(0)
    assert heard([to_p, to_d]) == told[1:], "the same is told again, of this attempt"
    assert list(to_p.samples) == [3]
