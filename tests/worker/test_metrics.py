"""What the histograms of waiting count: every row that took part, and no other."""

from __future__ import annotations

import pytest

from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.event_outbox import row_event
from twolane.worker.metrics import WorkerMetrics
from twolane.worker.timeline import Timeline

PREFILL, DECODE = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE
HANDED_OVER, FINISHED = worker_pb2.RowEvent.KIND_HANDED_OVER, worker_pb2.RowEvent.KIND_FINISHED


def counted(
    role: worker_pb2.Role, kind: worker_pb2.RowEvent.Kind, times: Timeline, reason: str = ""
) -> tuple[float, float]:
    """How many prefill and decode waits these last words of a row are."""
    figures = times.prefill_figures() if role == PREFILL else times.decode_figures()
    metrics = WorkerMetrics()
    metrics.on_event(row_event(AttemptId("r", 1), kind, role, reason=reason, figures=figures))

    def count(name: str) -> float:
        value = metrics.registry.get_sample_value(f"twolane_{name}_wait_seconds_count")
        assert value is not None
        return value

    return count("prefill"), count("decode")


READ = Timeline(arrived_s=1.0, started_s=2.0, first_token_s=3.0)


@pytest.mark.parametrize("kind", [HANDED_OVER, FINISHED])
def test_prefill_wait_counts_answers_that_end_at_the_first_token(
    kind: worker_pb2.RowEvent.Kind,
) -> None:
    assert counted(PREFILL, kind, READ) == (1, 0)


def test_prefill_wait_does_not_count_rows_cancelled_in_the_queue() -> None:
    assert counted(PREFILL, FINISHED, Timeline(arrived_s=1.0), "cancelled") == (0, 0)


@pytest.mark.parametrize(
    "times",
    [
        Timeline(arrived_s=1.0),
        Timeline(arrived_s=1.0, landed_s=2.0, last_token_s=2.0),
        Timeline(arrived_s=1.0, landed_s=2.0, last_token_s=2.0, joined_s=3.0),
    ],
    ids=["waiting", "landed", "in its first step"],
)
def test_decode_wait_does_not_count_rows_cancelled_before_their_first_token_here(
    times: Timeline,
) -> None:
    assert counted(DECODE, FINISHED, times, "cancelled") == (0, 0)
    assert times.decode_figures().decode_s == 0.0


def test_decode_wait_counts_rows_that_decoded_however_they_ended() -> None:
    times = Timeline(arrived_s=1.0, landed_s=2.0, joined_s=3.0, last_token_s=4.0)
    assert counted(DECODE, FINISHED, times) == (0, 1)
    assert counted(DECODE, FINISHED, times, "cancelled") == (0, 1)
