"""When an answer ends, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.params import SamplingParams
from twolane.v1.sampling_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    FINISH_REASON_UNSPECIFIED,
    FinishReason,
)
from twolane.worker.finish import finish_reason

SPEC = FakeEngine(FakeEngineConfig(n_pages=1, eos_token_ids=(2, 3), max_context_tokens=50)).spec
EOS, STOP_ID, PLAIN = 3, 9, 7

TABLE = [
    # params, last token, n-th of the answer, tokens in all, reason
    ({}, PLAIN, 1, 11, FINISH_REASON_UNSPECIFIED),
    ({}, EOS, 1, 11, FINISH_REASON_STOP),
    ({}, STOP_ID, 5, 15, FINISH_REASON_STOP),
    ({"ignore_eos": True}, EOS, 5, 15, FINISH_REASON_UNSPECIFIED),
    ({"ignore_eos": True}, STOP_ID, 5, 15, FINISH_REASON_STOP),
    ({"min_tokens": 5}, EOS, 5, 15, FINISH_REASON_UNSPECIFIED),
    ({"min_tokens": 5}, EOS, 6, 16, FINISH_REASON_STOP),
    ({"min_tokens": 5}, STOP_ID, 5, 15, FINISH_REASON_UNSPECIFIED),
    ({"min_tokens": 20}, EOS, 20, 30, FINISH_REASON_LENGTH),
    ({}, PLAIN, 19, 29, FINISH_REASON_UNSPECIFIED),
    ({}, PLAIN, 20, 30, FINISH_REASON_LENGTH),
    ({}, EOS, 20, 30, FINISH_REASON_STOP),
    ({}, PLAIN, 10, 49, FINISH_REASON_UNSPECIFIED),
    ({}, PLAIN, 11, 50, FINISH_REASON_LENGTH),
    ({"max_tokens": None}, PLAIN, 48, 49, FINISH_REASON_UNSPECIFIED),
    ({"max_tokens": None}, PLAIN, 49, 50, FINISH_REASON_LENGTH),
]


@pytest.mark.parametrize(("options", "token", "n_answer", "n_tokens", "reason"), TABLE)
def test_answer_ends_by_the_first_rule_that_applies(
    options: dict[str, Any], token: int, n_answer: int, n_tokens: int, reason: FinishReason
) -> None:
    params = SamplingParams(**{"max_tokens": 20, "stop_token_ids": (STOP_ID,), **options})
    found = finish_reason(
        last_token=token, n_answer=n_answer, n_tokens=n_tokens, params=params, spec=SPEC
    )
    assert found == reason
