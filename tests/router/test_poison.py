"""What is wrong with one request ends that request, never the router."""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest

from twolane.errors import InternalError, InvalidParameterError
from twolane.router.config import AdmissionConfig, RouterConfig
from twolane.router.dispatch import board, commands
from twolane.router.dispatch.load_tally import Tally
from twolane.router.dispatch.recovery import Recovery
from twolane.router.intake import NO_DEADLINE_S, deadline_of
from twolane.router.requests.answer import Answer
from twolane.router.router import Router
from twolane.router.testing import rows
from twolane.router.testing.client import Outcome, ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.router.text.codec import TextCodec
from twolane.router.text.detokenizer import Detokenizer
from twolane.v1 import worker_pb2

ONE_ROW = RouterConfig(admission=AdmissionConfig(extra_rows=0))
BAD = [7, 7, 7]  # the prompt that the injected bug meets
GOOD = [1, 2, 3]


@pytest.mark.parametrize("time_left_s", [1e308, math.inf, 9.3e15, NO_DEADLINE_S * 1.01])
def test_deadline_beyond_ten_years_is_none(time_left_s: float) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        outcome = await ask(router, message(GOOD, max_tokens=5), time_left_s=time_left_s)
        assert outcome.tokens == expected_answer(GOOD, 5)
        assigns = [c.assign for c in cluster.workers["p0"].commands if c.HasField("assign")]
        assert [assign.time_left_ms for assign in assigns] == [0]

    assert deadline_of(5.0, time_left_s) is None
    play(script)


def test_deadline_that_is_no_number_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidParameterError, match="timeout_s is nan"):
        deadline_of(5.0, math.nan)
    assert deadline_of(5.0, None) is None
    assert deadline_of(5.0, 2.5) == 7.5


@pytest.mark.parametrize(
    ("deadline", "time_left_ms"),
    [(None, 0), (0.5, 1), (3.0, 2_000), (math.inf, commands.MAX_TIME_LEFT_MS), (1e300, None)],
)
def test_time_left_for_workers_is_whole_and_bounded(deadline: Any, time_left_ms: Any) -> None:
    expected = commands.MAX_TIME_LEFT_MS if time_left_ms is None else time_left_ms
    assert commands.time_left_ms(deadline, 1.0) == expected


def placing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = commands.assigns

    def assigns(request: Any, *args: Any) -> Any:
        if list(request.job.token_ids) == BAD:
            raise OverflowError("injected")
        return real(request, *args)

    monkeypatch.setattr(commands, "assigns", assigns)


def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Recovery.tick

    def tick(self: Recovery, request: Any, now: float) -> None:
        if list(request.job.token_ids) == BAD:
            raise ZeroDivisionError("injected")
        real(self, request, now)

    monkeypatch.setattr(Recovery, "tick", tick)


def telling(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Answer.add

    def add(self: Answer, token_id: int, *args: Any) -> bool:
        if len(self.tokens) == 3 and token_id == expected_answer(BAD, 4)[3]:
            raise IndexError("injected")
        return real(self, token_id, *args)

    monkeypatch.setattr(Answer, "add", add)


def telling_and_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a token that the tokenizer raises at, whenever it is asked."""
    telling(monkeypatch)
    real = Answer.end

    def end(self: Answer) -> None:
        if self.tokens == expected_answer(BAD, 3):
            raise OverflowError("injected")
        real(self)

    monkeypatch.setattr(Answer, "end", end)


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("inject", [placing, ticking, telling, telling_and_ending])
def test_bug_met_by_one_request_fails_it_alone(
    inject: Callable[[pytest.MonkeyPatch], None],
    is_busy: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    inject(monkeypatch)

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("d0", decode_rows=1)
        await asyncio.sleep(0.1)
        before = [asyncio.create_task(ask(router, message(GOOD, max_tokens=20)))] * is_busy
        await asyncio.sleep(0.01)
        bad = asyncio.create_task(ask(router, message(BAD, max_tokens=400), time_left_s=3.0))
        await asyncio.sleep(0.01)
        after = asyncio.create_task(ask(router, message(GOOD, max_tokens=9)))
        assert isinstance((await bad).error, InternalError)
        done: list[Outcome] = await asyncio.gather(*before, after)
        for outcome, n_tokens in zip(reversed(done), (9, 20), strict=False):
            assert outcome.tokens == expected_answer(GOOD, n_tokens)
        assert (await ask(router, message(GOOD, max_tokens=3))).error is None

    with caplog.at_level(logging.ERROR, logger="twolane.router"):
        play(script, ("p0",), config=ONE_ROW)
    assert "injected" in caplog.text
    assert "Traceback" in caplog.text


def test_a_broken_law_of_our_own_tables_ends_the_router(monkeypatch: pytest.MonkeyPatch) -> None:
    def give(self: Tally, attempt: Any) -> None:
        raise AssertionError("injected")

    monkeypatch.setattr(Tally, "add", give)

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        with pytest.raises(AssertionError, match="injected"):
            await ask(router, message(GOOD, max_tokens=3))
        await asyncio.sleep(60.0)  # its end calls this off

    with pytest.raises(BaseExceptionGroup) as caught:
        play(script)
    assert caught.group_contains(AssertionError, match="injected")


def test_bug_that_many_requests_meet_is_logged_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    placing(monkeypatch)

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        for _ in range(20):
            assert isinstance((await ask(router, message(BAD))).error, InternalError)
        await asyncio.sleep(11.0)
        assert isinstance((await ask(router, message(BAD))).error, InternalError)
        assert router.status().counters["bugs"] == 21

    with caplog.at_level(logging.ERROR, logger="twolane.router"):
        play(script)
    met = [text.partition(" met while ")[2] for text in caplog.messages]
    assert [text.partition(":")[0] for text in met] == [
        "1 requests were placed",
        "20 requests were placed",
    ]


def test_text_that_cannot_be_decoded_fails_its_request_alone(
    codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = expected_answer(BAD, 4)[3]
    assert poison not in expected_answer(GOOD, 9)
    real = Detokenizer.add

    def add(self: Detokenizer, token_id: int) -> str:
        if token_id == poison:
            raise ValueError("injected")
        return real(self, token_id)

    monkeypatch.setattr(Detokenizer, "add", add)

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        bad = asyncio.create_task(ask(router, message(BAD, max_tokens=20)))
        good = asyncio.create_task(ask(router, message(GOOD, max_tokens=9)))
        assert isinstance((await bad).error, InternalError)
        detokenizer = codec.detokenizer()
        assert (await bad).text == "".join(map(detokenizer.add, expected_answer(BAD, 3)))
        assert (await good).tokens == expected_answer(GOOD, 9)
        assert (await ask(router, message(GOOD, max_tokens=3))).error is None

    play(script, text=codec)


def losing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Recovery.retry

    def retry(self: Recovery, request: Any, *args: Any, **options: Any) -> None:
        if list(request.job.token_ids) == BAD:
            raise KeyError("injected")
        real(self, request, *args, **options)

    monkeypatch.setattr(Recovery, "retry", retry)


def attaching(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Recovery.attach

    def attach(self: Recovery, request: Any, epoch: int) -> None:
        if list(request.job.token_ids) == BAD:
            raise KeyError("injected")
        real(self, request, epoch)

    monkeypatch.setattr(Recovery, "attach", attach)


@pytest.mark.parametrize(("inject", "fault"), [(losing, "kill"), (attaching, "cut")])
def test_bug_met_when_a_worker_fails_ends_one_of_its_requests(
    inject: Callable[[pytest.MonkeyPatch], None], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch)

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tasks = [
            asyncio.create_task(ask(router, message(prompt, max_tokens=40)))
            for prompt in (GOOD, BAD, [4, 5, 6])
        ]
        await asyncio.sleep(0.1)
        getattr(cluster.workers["d0"], fault)()
        cluster.start_worker("d1")
        good, bad, also_good = await asyncio.gather(*tasks)
        assert isinstance(bad.error, InternalError)
        assert good.tokens == expected_answer(GOOD, 40)
        assert also_good.tokens == expected_answer([4, 5, 6], 40)

    play(script, ("p0", "d0"))


def test_figures_that_do_not_add_up_fail_their_request_and_are_no_silent_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that a worker sends are checked; here they are not."""
    most = worker_pb2.RowFigures(transfer_bytes=2**63 - 1)
    monkeypatch.setattr(rows, "_figures", lambda role: most)
    monkeypatch.setattr(board, "check_figures", lambda figures: None)

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        outcome = await ask(router, message(GOOD, max_tokens=5))
        assert isinstance(outcome.error, InternalError)

    play(script)
