"""Which ASSIGN is refused, and with what word."""

from __future__ import annotations

from typing import Any

import pytest

from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.v1 import sampling_pb2, worker_pb2
from twolane.worker.assign_check import check_assign
from twolane.worker.errors import RowRefusedError

SPEC = FakeEngine(
    FakeEngineConfig(n_pages=4, page_tokens=16, vocab_size=100, max_context_tokens=60)
).spec


def assign(**changes: Any) -> worker_pb2.Assign:
    fields: dict[str, Any] = {
        "key": worker_pb2.AttemptKey(submission_id="r", attempt=1),
        "row": 1,
        "roles": [worker_pb2.ROLE_PREFILL],
        "token_ids": [1, 2, 3],
        "n_prompt": 3,
        "sampling": sampling_pb2.SamplingParams(seed=1, max_tokens=5),
    }
    return worker_pb2.Assign(**(fields | changes))


def test_sound_assign_gives_its_parameters() -> None:
    assert check_assign(assign(), SPEC).max_tokens == 5


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        ({"key": worker_pb2.AttemptKey(attempt=1)}, "invalid", "key"),
        ({"key": worker_pb2.AttemptKey(submission_id="r")}, "invalid", "key"),
        ({"key": worker_pb2.AttemptKey(submission_id="r", attempt=1 << 16)}, "invalid", "key"),
        ({"row": 0}, "invalid", "row"),
        ({"roles": []}, "invalid", "roles"),
        ({"roles": [worker_pb2.ROLE_DECODE] * 2}, "invalid", "roles"),
        ({"token_ids": []}, "invalid", "n_prompt"),
        ({"n_prompt": 0}, "invalid", "n_prompt"),
        ({"n_prompt": 4}, "invalid", "n_prompt"),
        ({"token_ids": [1, 2, 100]}, "invalid", "0 to 99"),
        ({"token_ids": [1, 2, -1]}, "invalid", "0 to 99"),
        ({"sampling": sampling_pb2.SamplingParams(max_tokens=5)}, "invalid", "seed"),
        ({"sampling": sampling_pb2.SamplingParams(seed=1, max_tokens=-5)}, "invalid", "max_tokens"),
        (
            {"sampling": sampling_pb2.SamplingParams(seed=1, max_tokens=2), "n_prompt": 1},
            "invalid",
            "already has all",
        ),
        ({"growth_tokens": -1}, "invalid", "below 0"),
        ({"time_left_ms": -1}, "invalid", "below 0"),
        ({"token_ids": [1] * 60, "n_prompt": 60}, "too_large", "59"),
    ],
)
def test_unsound_assign_is_refused_with_a_stable_word(
    changes: dict[str, Any], reason: str, says: str
) -> None:
    with pytest.raises(RowRefusedError, match=says) as refusal:
        check_assign(assign(**changes), SPEC)
    assert refusal.value.reason == reason


def test_prompt_of_more_pages_than_the_pool_is_too_large() -> None:
    spec = FakeEngine(FakeEngineConfig(n_pages=2, page_tokens=16, vocab_size=100)).spec
    with pytest.raises(RowRefusedError) as refusal:
        check_assign(assign(token_ids=[1] * 33, n_prompt=33), spec)
    assert refusal.value.reason == "too_large"
