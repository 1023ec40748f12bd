"""Numbers that no worker of ours sends are refused, and harm no request."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from twolane.errors import InvalidParameterError
from twolane.router.members.sound_numbers import check_load
from twolane.router.router import Router
from twolane.router.testing import rows
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.v1 import worker_pb2

PROMPT = [1, 2, 3]


def load(**fields: Any) -> worker_pb2.LoadReport:
    return worker_pb2.LoadReport(**fields)


def done(**fields: Any) -> worker_pb2.LoadReport:
    return load(done=worker_pb2.WorkDone(**fields))


@pytest.mark.parametrize(
    ("report", "field"),
    [
        (done(prefill_s=math.nan, prefill_tokens=1), "done.prefill_s"),
        (done(prefill_s=math.inf, prefill_tokens=1), "done.prefill_s"),
        (done(prefill_s=1.0, prefill_tokens=-5), "done.prefill_tokens"),
        (load(pages=worker_pb2.PageCounts(used=-(1 << 60))), "pages.used"),
        (load(step_p99_s=-0.5), "step_p99_s"),
        (load(rows=-1), "rows"),
    ],
)
def test_a_number_that_cannot_be_computed_with_is_named(
    report: worker_pb2.LoadReport, field: str
) -> None:
    with pytest.raises(InvalidParameterError, match=f"^{field} is ") as caught:
        check_load(report)
    assert caught.value.field == field


def test_a_good_report_passes() -> None:
    check_load(load())
    check_load(load(rows=3, draining=True, roles=[worker_pb2.ROLE_DECODE], fence_wanted=[7]))


@pytest.mark.parametrize("prefill_s", [math.nan, math.inf, -1.0, 5e-324])
def test_a_false_pace_fails_no_request(prefill_s: float, caplog: pytest.LogCaptureFixture) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        said = worker_pb2.SessionResponse(load=done(prefill_s=prefill_s, prefill_tokens=1))
        router.session_message(cluster.workers["p0"].epoch, said)
        outcome = await ask(router, message(PROMPT, max_tokens=9))
        assert outcome.error is None
        assert outcome.tokens == expected_answer(PROMPT, 9)
        n_refused = router._dispatcher.board.counters["dropped.malformed_load"]
        assert n_refused == (prefill_s != 5e-324)

    with caplog.at_level(logging.ERROR, logger="twolane.router"):
        play(script, ("p0", "b0"))
    assert ("done.prefill_s is" in caplog.text) == (prefill_s != 5e-324)


def test_a_refused_report_leaves_the_last_good_one() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        epoch = cluster.workers["d0"].epoch
        router.session_message(epoch, worker_pb2.SessionResponse(load=load(rows=1)))
        router.session_message(epoch, worker_pb2.SessionResponse(load=load(rows=-4)))
        member = router._dispatcher.members.get(epoch)
        assert member is not None
        assert member.load.rows == 1
        assert (await ask(router, message(PROMPT, max_tokens=9))).error is None

    play(script)


@pytest.mark.parametrize(
    "wrong",
    [{"transfer_bytes": (1 << 63) - 1}, {"prefill_s": math.nan}, {"cached_tokens": -3}],
    ids=str,
)
def test_false_figures_of_a_row_fail_no_request_and_reach_no_ledger(
    wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_figures", lambda role: worker_pb2.RowFigures(**wrong))

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        outcome = await ask(router, message(PROMPT, max_tokens=9))
        assert outcome.error is None
        assert outcome.tokens == expected_answer(PROMPT, 9)
        assert outcome.ledger is not None
        assert all(getattr(outcome.ledger, name) == 0 for name in wrong)
        assert router._dispatcher.board.counters["dropped.malformed_figures"] == 3

    play(script)
