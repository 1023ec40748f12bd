"""Which router the SDK asks after a call that failed, for how long, and what it raises at the end.

The routers are scripted, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status.rpc_status import to_status

from twolane.aclient import AsyncClient
from twolane.calls.door import Door, Doors
from twolane.calls.resuming import FRESH_S, LOST_S, RESTART_S, TELL_S, ResumingCall
from twolane.config import ClientConfig
from twolane.errors import DeadlineError, TwolaneError, UnavailableError
from twolane.rpc.errors import is_of_router
from twolane.rpc.errors import to_status as to_proto
from twolane.security.target import Target
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import inference_pb2, sampling_pb2

C = grpc.StatusCode
Said = inference_pb2.GenerateResponse | grpc.aio.AioRpcError


def failure(
    code: grpc.StatusCode, text: str, trailing: grpc.aio.Metadata | None = None
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing or grpc.aio.Metadata(), text)


REFUSED = failure(C.UNAVAILABLE, "failed to connect to all addresses; … Connection refused")
LOST = failure(C.UNAVAILABLE, "Socket closed")
HELD = failure(C.ALREADY_EXISTS, "request id x is in use")
UNHEARD = failure(C.CANCELLED, "CANCELLED")
UNKNOWN = failure(C.NOT_FOUND, "nothing of it is left")
UNSPOKEN = failure(
    C.UNAVAILABLE,
    "failed to connect to all addresses; … connection attempt timed out before receiving SETTINGS",
)
GIVES_UP = failure(
    C.UNAVAILABLE,
    "out of attempts",
    grpc.aio.Metadata(*to_status(to_proto(UnavailableError("out of attempts"))).trailing_metadata),
)
LATE = failure(C.DEADLINE_EXCEEDED, "Deadline Exceeded")
FIRST = inference_pb2.GenerateResponse(request_id="x", submission_id="sub", resume_token=b"s")
TOKEN = inference_pb2.GenerateResponse(tokens=[inference_pb2.Token(index=0, token_id=7)])
LAST = inference_pb2.GenerateResponse(finish_reason=sampling_pb2.FINISH_REASON_LENGTH)


class Router:
    """In place of a door's stub and multiplexer. The nth call gets what `calls[n]` says, and each
    later one what the last of them says."""

    def __init__(
        self,
        *calls: list[Said],
        finds: str = "",
        is_silent: bool = False,
        models_after: int = 0,  # so many calls, of which the first finds a connection that is mute
    ) -> None:
        self._calls = calls
        self._models_after = models_after
        self._finds, self._is_silent = finds, is_silent
        self.n_asked = 0

    def start(self, request: Any, left_s: float | None, trace: object) -> ScriptedCall:
        self.n_asked += 1
        return ScriptedCall(self._calls[min(self.n_asked, len(self._calls)) - 1])

    def Resume(self, request: Any, timeout: float | None, metadata: object) -> ScriptedCall:
        return self.start(request, timeout, metadata)

    async def Cancel(self, request: Any, **how: Any) -> Any:
        if self._is_silent:
            await asyncio.sleep(how["timeout"])
            raise LATE
        return inference_pb2.CancelResponse(found=request.request_id == self._finds)

    async def ListModels(self, request: Any, **how: Any) -> Any:
        self.n_asked += 1
        if self._models_after == self.n_asked:
            return inference_pb2.ListModelsResponse()
        if self._models_after and not how.get("wait_for_ready"):
            await asyncio.sleep(3.0)
            raise UNSPOKEN
        if self._is_silent or self._models_after:
            await asyncio.sleep(how["timeout"])
            raise LATE
        return inference_pb2.ListModelsResponse()


class ScriptedCall:
    def __init__(self, says: list[Said]) -> None:
        self._says = iter(says)

    def __aiter__(self) -> ScriptedCall:
        return self

    async def __anext__(self) -> inference_pb2.GenerateResponse:
        await asyncio.sleep(0.001)
        said = next(self._says, None)
        if said is None:
            raise StopAsyncIteration
        if isinstance(said, grpc.aio.AioRpcError):
            raise failure(said.code(), said.details() or "", said.trailing_metadata())
        message = inference_pb2.GenerateResponse()
        message.CopyFrom(said)
        return message

    def cancel(self) -> bool:
        return True


def run(work: Coroutine[Any, Any, Any], routers: tuple[Router, ...]) -> Any:
    """`work`, whose doors "r0:1", "r1:1", … lead to these."""
    at = {f"r{n}:1": router for n, router in enumerate(routers)}
    with pytest.MonkeyPatch.context() as patch, virtual_time_runner() as runner:
        for name in ("multiplexer", "inference"):
            patch.setattr(Door, name, property(lambda door: at[door.target.endpoint]))
        return runner.run(work)


def ask(
    *routers: Router, n_named: int = 0, timeout_s: float | None = None
) -> tuple[list[int], grpc.StatusCode | None, float]:
    """The tokens of an answer that is asked for at the first of them, the code that it ends with,
    and how long it took. `n_named` of them are known at the beginning; 0: all."""

    async def read() -> tuple[list[int], grpc.StatusCode | None, float]:
        doors = Doors([Target(f"r{n}:1") for n in range(n_named or len(routers))])
        doors._at = len(doors.all) - 1
        tokens, code = [], None
        try:
            call = ResumingCall(doors, inference_pb2.GenerateRequest(), timeout_s)
            async for message in call:
                tokens += [token.token_id for token in message.tokens]
        except grpc.aio.AioRpcError as error:
            code = error.code()
        return tokens, code, asyncio.get_running_loop().time()

    found: tuple[list[int], grpc.StatusCode | None, float] = run(read(), routers)
    return found


def test_a_label_is_anothers_where_no_router_has_heard_of_the_request() -> None:
    other = Router([HELD], [FIRST, TOKEN, LAST])
    assert ask(Router([REFUSED]), other)[:2] == ([], C.ALREADY_EXISTS)
    assert other.n_asked == 1
    other = Router([HELD], [FIRST, TOKEN, LAST])
    assert ask(Router([LOST]), other)[:2] == ([7], None)
    moved = inference_pb2.GenerateResponse(moved=True)
    other = Router([UNKNOWN], [HELD], [FIRST, TOKEN, LAST])
    assert ask(Router([FIRST, moved], [UNKNOWN], [FIRST, TOKEN, LAST]), other)[:2] == ([7], None)


@pytest.mark.parametrize(
    "calls",
    [
        [([LOST], [REFUSED]), ([HELD], [HELD], [REFUSED])],
        [([LOST], [HELD], [LOST])],
    ],
    ids=["two ports", "one port, of unknown routers"],
)
def test_a_wait_for_a_label_ends_as_in_use_whatever_was_asked_last(
    calls: list[tuple[list[Said], ...]],
) -> None:
    _, code, took_s = ask(*(Router(*each) for each in calls))
    assert code is C.ALREADY_EXISTS
    assert FRESH_S < LOST_S - 2.0 < took_s <= LOST_S


def test_a_label_that_was_free_at_last_is_not_what_a_later_loss_ends_with() -> None:
    tokens, code, _ = ask(Router([LOST], [REFUSED]), Router([HELD], [FIRST, TOKEN, LOST], [LOST]))
    assert (tokens, code) == ([7], C.UNAVAILABLE)


@pytest.mark.parametrize(
    ("one", "other", "n_asked", "ends"),
    [
        ([[UNHEARD]], [[FIRST, TOKEN, LAST]], (1, 1), ([7], None)),
        ([[FIRST, UNHEARD]], [[FIRST, TOKEN, LAST]], (1, 0), ([], C.CANCELLED)),
        ([[FIRST, TOKEN, UNHEARD]], [[FIRST, LAST]], (1, 0), ([7], C.CANCELLED)),
        ([[FIRST, TOKEN, LOST]], [[FIRST, UNHEARD]], (1, 1), ([7], C.CANCELLED)),
        ([[FIRST, LOST], [FIRST, TOKEN, LAST]], [[UNKNOWN], [UNHEARD]], (2, 2), ([7], None)),
    ],
)
def test_a_call_without_an_answer_alone_passes_for_unheard(
    one: list[list[Said]],
    other: list[list[Said]],
    n_asked: tuple[int, int],
    ends: tuple[list[int], grpc.StatusCode | None],
) -> None:
    first, second = Router(*one), Router(*other)
    assert ask(first, second)[:2] == ends
    assert (first.n_asked, second.n_asked) == n_asked


@pytest.mark.parametrize(
    ("request_id", "finds"), [("x", True), ("y", DeadlineError)], ids=["found", "not found"]
)
def test_a_cancel_goes_on_past_a_router_that_says_nothing(
    request_id: str, finds: bool | type[TwolaneError]
) -> None:
    async def cancel() -> bool | type[TwolaneError]:
        try:
            return await AsyncClient("r0:1,r1:1").cancel(request_id)
        except (DeadlineError, UnavailableError) as error:
            return type(error)

    assert run(cancel(), (Router(is_silent=True), Router(finds="x"))) == finds


@pytest.mark.parametrize("of_router", [False, True])
def test_the_only_router_is_no_other_one_by_the_name_that_it_announces(
    of_router: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def has_one_address(door: Door) -> bool:
        return False

    monkeypatch.setattr(Door, "has_others", has_one_address)
    first = inference_pb2.GenerateResponse(request_id="x", submission_id="s", routers=["r1:1"])

    router = Router([first, TOKEN, GIVES_UP if of_router else LOST], [REFUSED])
    tokens, code, took_s = ask(router, router, n_named=1)
    assert (tokens, code) == ([7], C.UNAVAILABLE)
    if of_router:  # it will not say anything else
        assert took_s < 0.1
    else:  # it may be started again
        assert FRESH_S < RESTART_S - 2.0 < took_s <= RESTART_S


@pytest.mark.parametrize(("timeout_s", "within_s"), [(2.0, 2.1), (None, FRESH_S + RESTART_S)])
def test_a_name_that_is_not_resolved_holds_no_answer_up(
    timeout_s: float | None, within_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def has_no_answer(door: Door) -> bool:
        await asyncio.sleep(1000.0)
        return True

    monkeypatch.setattr(Door, "has_others", has_no_answer)
    first = inference_pb2.GenerateResponse(request_id="x", submission_id="s", routers=["r1:1"])
    router = Router([first, TOKEN, LOST], [REFUSED])
    tokens, code, took_s = ask(router, router, n_named=1, timeout_s=timeout_s)
    assert (tokens, code) == ([7], C.UNAVAILABLE)
    assert took_s <= within_s


def test_a_search_that_takes_long_is_logged_once_for_all_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "twolane")
    at_s: list[float] = []

    class Clock(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            at_s.append(asyncio.get_running_loop().time())

    async def read(doors: Doors) -> None:
        async for _ in ResumingCall(doors, inference_pb2.GenerateRequest(), None):
            pass

    async def lose() -> None:
        clock = Clock()
        logging.getLogger("twolane").addHandler(clock)
        doors = Doors([Target("r0:1"), Target("r1:1")])
        ends = await asyncio.gather(read(doors), read(doors), return_exceptions=True)
        logging.getLogger("twolane").removeHandler(clock)
        assert [type(end) for end in ends] == [grpc.aio.AioRpcError] * 2

    run(lose(), (Router([FIRST, LOST], [REFUSED]), Router([FIRST, TOKEN, LOST], [REFUSED])))
    assert caplog.messages == ["no router of r0:1,r1:1 answers; trying again for 28 s"]
    assert TELL_S <= at_s[0] < 2.0


def test_a_search_that_is_short_is_not_logged_and_the_end_of_a_long_one_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "twolane")
    ask(Router([FIRST, LOST]), Router([FIRST, TOKEN, LAST]))
    assert caplog.messages == []
    refused: list[list[Said]] = [[REFUSED]] * 8
    ask(Router([FIRST, LOST], *refused), Router(*refused, [FIRST, TOKEN, LAST]))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_short_call_goes_on_past_a_router_that_says_nothing() -> None:
    async def models() -> tuple[int, float]:
        client = AsyncClient("r0:1,r1:1")
        client._doors._at = 1
        return len(await client.models()), asyncio.get_running_loop().time()

    assert run(models(), (Router(is_silent=True), Router())) == (0, 5.0)


@pytest.mark.parametrize(("n", "call_s", "took_s"), [(2, 1.0, 0.5), (8, 10.0, 2.0)])
def test_a_router_that_says_nothing_leaves_others_time_and_has_enough_itself(
    n: int, call_s: float, took_s: float
) -> None:
    async def cancel() -> tuple[bool, float]:
        client = AsyncClient(
            ",".join(f"r{i}:1" for i in range(n)), config=ClientConfig(call_timeout_s=call_s)
        )
        return await client.cancel("x"), asyncio.get_running_loop().time()

    others = [Router(finds="x") for _ in range(n - 1)]
    assert run(cancel(), (Router(is_silent=True), *others)) == (True, took_s)


def test_a_cancel_whose_time_ends_before_all_were_asked_does_not_say_that_none_has_it() -> None:
    async def cancel() -> None:
        config = ClientConfig(call_timeout_s=4.0)
        await AsyncClient("r0:1,r1:1,r2:1", config=config).cancel("x")

    class Slow(Router):
        async def Cancel(self, request: Any, **how: Any) -> Any:
            await asyncio.sleep(how["timeout"])
            return inference_pb2.CancelResponse(found=False)

    with pytest.raises(DeadlineError, match="not every router answered within 4 s"):
        run(cancel(), (Slow(), Slow(), Router(finds="x")))


def test_what_a_proxy_says_is_not_said_by_a_router() -> None:
    ours = to_proto(UnavailableError("out of attempts"))
    info = error_details_pb2.ErrorInfo(domain="envoy", reason="UNAVAILABLE")
    foreign = type(ours)(code=ours.code, message=ours.message)
    foreign.details.add().Pack(info)
    errors = [
        failure(C.UNAVAILABLE, its.message, grpc.aio.Metadata(*to_status(its).trailing_metadata))
        for its in (ours, foreign)
    ]
    assert [*map(is_of_router, errors)] == [True, False]


def test_a_short_call_that_no_router_answers_keeps_its_time() -> None:
    async def models() -> float:
        config = ClientConfig(call_timeout_s=4.0)
        with pytest.raises(DeadlineError, match="within 4 s"):
            await AsyncClient("r0:1,r1:1", config=config).models()
        return asyncio.get_running_loop().time()

    assert run(models(), (Router(is_silent=True), Router(is_silent=True))) == 4.0


@pytest.mark.parametrize(
    ("models_after", "took_s", "says"), [(2, 3.0, ""), (3, 10.0, "what listens at r0:1 accepts")]
)
def test_a_router_that_hangs_may_have_a_neighbour_at_its_port(
    models_after: int, took_s: float, says: str
) -> None:
    async def models() -> tuple[str, float]:
        loop, said = asyncio.get_running_loop(), ""
        try:
            await AsyncClient("r0:1").models()
        except UnavailableError as error:
            said = error.message
        return said[: len(says) or None], loop.time()

    assert run(models(), (Router(models_after=models_after),)) == (says, took_s)


def test_a_new_client_asks_behind_a_router_that_hangs_once_more() -> None:
    tokens, code, _ = ask(Router([UNSPOKEN], [FIRST, TOKEN, LAST]))
    assert (tokens, code) == ([7], None)
    router = Router([UNSPOKEN], [HELD])
    assert ask(router)[:2] == ([], C.ALREADY_EXISTS)
    assert router.n_asked == 2, "nothing of it can hold the label"
