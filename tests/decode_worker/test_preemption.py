"""Who gives way."""

from __future__ import annotations

import pytest

from twolane.decode_worker.preemption import choose_victim
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.params import SamplingParams
from twolane.v1 import worker_pb2
from twolane.worker.rows import Row

SPEC = FakeEngine(FakeEngineConfig(n_pages=4)).spec


def row(number: int, priority: int, arrived_s: float) -> Row:
    assign = worker_pb2.Assign(
        key=worker_pb2.AttemptKey(submission_id=f"r{number}", attempt=1),
        token_ids=[1],
        n_prompt=1,
        priority=priority,
    )
    return Row(assign, SamplingParams(), SPEC, number=number, arrived_s=arrived_s)


@pytest.mark.parametrize(
    ("rows", "victim"),
    [
        ([(1, 0, 0.0)], 1),
        ([(1, 0, 0.0), (2, 0, 1.0)], 2),
        ([(1, 0, 5.0), (2, 1, 9.0)], 1),
        ([(1, -3, 0.0), (2, -5, 0.0), (3, -5, 1.0), (4, 0, 9.0)], 3),
        ([(2, 0, 1.0), (1, 0, 1.0)], 2),
    ],
)
def test_lowest_priority_then_youngest_gives_way(
    rows: list[tuple[int, int, float]], victim: int
) -> None:
    assert choose_victim([row(*facts) for facts in rows]).number == victim
