"""An answer outlives its router: the SDK goes on at another one, with nothing lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from twolane.aclient import AsyncClient
from twolane.calls import resuming
from twolane.calls.resuming import LOST_S
from twolane.errors import DeadlineError, DuplicateRequestError, InternalError, UnavailableError
from twolane.rpc.errors import end_call
from twolane.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2

N_TOKENS = 8
TOKENS = [100 + index for index in range(N_TOKENS)]
TEXT = "".join(f"é{index} " for index in range(N_TOKENS))
SECRET = b"0123456789abcdef"
C = grpc.StatusCode
# The time may end while a router is asked, or between two of them.
_NO_ROUTER_IN_TIME = (UnavailableError, DeadlineError)


class RouterDouble(inference_pb2_grpc.InferenceServiceServicer):
    """Answers `TOKENS`. `breaks_after` tokens it aborts with UNAVAILABLE, as a call ends whose
    router is killed; None: never. `resume_fails` are the codes of the next Resumes. With
    `hears_nothing` it ends every call as gRPC does if a server stops before a handler begins."""

    def __init__(self) -> None:
        self.address = ""
        self.routers: list[str] = []  # as it announces them
        self.breaks_after: int | None = None
        self.n_lost = 0  # so many of the next Generates, before they begin
        self.n_held = 0  # so many of the next Generates, as their label is in use
        self.stops_with: list[str] = []  # the routers that it names, as one that stops
        self.moves_after: int | None = None
        self.knows_resume = True
        self.resumes_well = False  # whether a Resume ends what made it break
        self.tokens = list(TOKENS)
        self.resume_fails: list[grpc.StatusCode] = []
        self.overlap = 0  # tokens that a Resume tells once more
        self.generates: list[inference_pb2.GenerateRequest] = []
        self.resumes: list[inference_pb2.ResumeRequest] = []
        self.cancels: list[str] = []
        self.running = "none"  # the request that a Cancel finds
        self.hears_nothing = False

    async def Multiplex(self, requests: Any, context: Any) -> None:
        await context.abort(C.UNIMPLEMENTED, "Method not found!")

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.generates.append(request)
        if self.hears_nothing:
            await context.abort(C.CANCELLED, "CANCELLED")
        if self.stops_with:
            await self._refuse(context)
            return
        self.n_lost -= 1
        if self.breaks_after == -1 or self.n_lost >= 0:
            await context.abort(C.UNAVAILABLE, "Socket closed")
        self.n_held -= 1
        if self.n_held >= 0:
            await end_call(context, DuplicateRequestError("request id x is in use"))
            return
        yield self._first(request.request_id or "drawn")
        n_known = len(request.resume.token_ids)
        async for response in self._tokens(n_known, n_known, context):
            yield response

    async def Resume(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.resumes.append(request)
        if self.hears_nothing:
            await context.abort(C.CANCELLED, "CANCELLED")
        if self.stops_with:
            await self._refuse(context)
            return
        if not self.knows_resume:
            await context.abort(C.UNIMPLEMENTED, "Method not found!")
        if self.resume_fails:
            await context.abort(self.resume_fails.pop(0), "no")
        if self.resumes_well:
            self.breaks_after = None
        yield self._first("drawn")
        known = request.n_tokens
        async for response in self._tokens(known - self.overlap, known, context):
            yield response

    async def Cancel(self, request: Any, context: Any) -> Any:
        self.cancels.append(request.request_id)
        if self.hears_nothing:
            await context.abort(C.CANCELLED, "CANCELLED")
        return inference_pb2.CancelResponse(found=request.request_id == self.running)

    async def ListModels(self, request: Any, context: Any) -> Any:
        if self.hears_nothing:
            await context.abort(C.CANCELLED, "CANCELLED")
        return inference_pb2.ListModelsResponse()

    async def _refuse(self, context: Any) -> None:
        named = {"routers": ",".join(self.stops_with)}
        await end_call(context, UnavailableError("the router is stopping", metadata=named))

    def _first(self, request_id: str) -> Any:
        return inference_pb2.GenerateResponse(
            request_id=request_id, seed=7, submission_id="sub", resume_token=SECRET,
            routers=self.routers,
        )  # fmt: skip

    async def _tokens(self, first: int, n_known: int, context: Any) -> AsyncIterator[Any]:
        for index in range(first, N_TOKENS):
            if index == self.breaks_after:
                await context.abort(C.UNAVAILABLE, "Socket closed")
            if index == self.moves_after:
                yield inference_pb2.GenerateResponse(moved=True)
                return
            token = inference_pb2.Token(index=index, token_id=self.tokens[index])
            text = f"é{index} " if index >= n_known else ""
            yield inference_pb2.GenerateResponse(tokens=[token], text=text)
        yield inference_pb2.GenerateResponse(
            finish_reason=sampling_pb2.FINISH_REASON_LENGTH,
            ledger=sampling_pb2.Ledger(output_tokens=N_TOKENS),
        )


@asynccontextmanager
async def two_routers() -> AsyncIterator[tuple[AsyncClient, RouterDouble, RouterDouble]]:
    """The client's next request goes to the first."""
    async with AsyncExitStack() as stack:
        routers = []
        for _ in range(2):
            server, router = grpc.aio.server(), RouterDouble()
            inference_pb2_grpc.add_InferenceServiceServicer_to_server(router, server)
            router.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            stack.push_async_callback(server.stop, None)
            routers.append(router)
        one, other = routers
        client = AsyncClient(f"{one.address},{other.address}")
        client._doors._at = 1
        yield await stack.enter_async_context(client), one, other


async def check_whole(client: AsyncClient, **options: Any) -> None:
    answer = await client.generate(token_ids=[1], **options)
    assert list(answer.token_ids) == TOKENS
    assert [token.index for token in answer.tokens] == list(range(N_TOKENS))
    assert answer.text == TEXT


@pytest.mark.parametrize("after", [0, 1, 5])
async def test_an_answer_whose_router_is_lost_goes_on_at_another(after: int) -> None:
    async with two_routers() as (client, one, other):
        one.breaks_after = after
        await check_whole(client)
        (resume,) = other.resumes
        assert (resume.submission_id, resume.resume_token) == ("sub", SECRET)
        assert (resume.takeover, resume.n_tokens) == (1, after)
        assert resume.n_text_bytes == len("".join(f"é{n} " for n in range(after)).encode())
        assert not other.generates


async def test_calls_that_a_stopping_router_never_heard_are_made_at_another() -> None:
    async with two_routers() as (client, one, other):
        one.hears_nothing = True
        await check_whole(client)
        assert len(one.generates) == len(other.generates) == 1
        client._doors._at, client._doors.all[0].avoided_until = 1, 0.0
        assert await client.models() == []
        one.hears_nothing, one.breaks_after, one.resumes_well = False, 3, True
        other.hears_nothing = True
        client._doors._at, client._doors.all[0].avoided_until = 1, 0.0
        await check_whole(client)
        assert [resume.takeover for resume in other.resumes + one.resumes] == [1, 2]


async def test_a_cancel_finds_a_request_though_another_router_is_lost() -> None:
    async with two_routers() as (client, one, other):
        one.hears_nothing, other.running = True, "x"
        assert await client.cancel("x")
        with pytest.raises(UnavailableError):
            await client.cancel("y")
        assert other.cancels == ["x", "y"]


async def test_routers_that_are_lost_in_turn_count_the_takeovers_up() -> None:
    async with two_routers() as (client, one, other):
        one.breaks_after, other.breaks_after = 2, 4
        answer = await client.generate(token_ids=[1])  # the first has passed its break by then
        assert list(answer.token_ids) == TOKENS
        assert [(r.takeover, r.n_tokens) for r in other.resumes + one.resumes] == [(1, 2), (2, 4)]


async def test_a_router_that_breaks_each_time_is_asked_with_pauses() -> None:
    async with two_routers() as (client, one, other):
        one.breaks_after = other.breaks_after = 3
        began = asyncio.get_running_loop().time()
        asking = asyncio.create_task(client.generate(token_ids=[1]))
        async with asyncio.timeout(60):
            while len(one.resumes) + len(other.resumes) < 6:
                await asyncio.sleep(0.01)
        least_s = sum(0.025 * n for n in range(6))  # each pause is half as long, or longer
        assert asyncio.get_running_loop().time() - began > least_s
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_tokens_that_are_told_again_are_dropped() -> None:
    async with two_routers() as (client, one, other):
        one.breaks_after, other.overlap = 5, 3
        await check_whole(client)


async def test_another_token_at_a_known_index_is_an_error() -> None:
    async with two_routers() as (client, one, other):
        one.breaks_after, other.overlap = 5, 3
        other.tokens[3] = 999
        with pytest.raises(InternalError, match="token 3 of the answer is 999; it was 103"):
            await client.generate(token_ids=[1])


async def test_an_answer_that_no_worker_has_is_asked_for_again_behind_what_is_here() -> None:
    async with two_routers() as (client, one, other):
        one.breaks_after, other.resume_fails = 3, [C.NOT_FOUND]
        await check_whole(client, max_tokens=N_TOKENS, request_id="mine")
        (again,) = other.generates
        assert list(again.resume.token_ids) == TOKENS[:3]
        assert again.resume.takeover == 1
        assert again.resume.n_text_bytes == len("é0 é1 é2 ".encode())
        assert (again.request_id, again.sampling.seed) == ("mine", 7)
        assert again.sampling.max_tokens == N_TOKENS


async def test_who_is_told_that_another_takeover_came_first_counts_on() -> None:
    async with two_routers() as (client, one, other):
        one.breaks_after, one.resumes_well = 3, True
        one.resume_fails = other.resume_fails = [C.ABORTED, C.UNAVAILABLE]
        answer = await client.generate(token_ids=[1])
        assert list(answer.token_ids) == TOKENS
        takeovers = sorted(resume.takeover for resume in one.resumes + other.resumes)
        assert takeovers == [1, 2, 3]


async def test_a_request_that_was_lost_before_it_began_is_sent_again_under_its_label() -> None:
    async with two_routers() as (client, one, other):
        one.breaks_after = -1
        await check_whole(client, request_id="mine")
        assert [request.request_id for request in other.generates] == ["mine"]
        assert not other.resumes


async def test_a_label_that_a_lost_router_still_holds_is_waited_for() -> None:
    async with two_routers() as (client, one, other):
        one.n_lost, other.n_held = 1, 3
        await check_whole(client, request_id="x")
        assert [request.request_id for request in other.generates] == ["x"] * 4
        client._doors._at, client._doors.all[0].avoided_until = 1, 0.0
        one.n_held = 1
        with pytest.raises(DuplicateRequestError):  # nothing of it was lost: it is another's
            await client.generate(token_ids=[1], request_id="x")
        assert len(other.generates) == 4


async def test_a_label_is_waited_for_also_by_a_client_that_knows_of_one_port_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resuming, "FRESH_S", 0.05)  # less than the pauses below
    async with two_routers() as (_, one, _), AsyncClient(one.address) as client:
        one.n_lost, one.n_held = 1, 4
        await check_whole(client)
        assert len(one.generates) == 6


async def test_moved_is_no_error_and_the_answer_goes_on() -> None:
    async with two_routers() as (client, one, other):
        one.moves_after = 4
        await check_whole(client)
        assert one.generates[0].resumes, "else it would not be told"
        assert [resume.n_tokens for resume in other.resumes] == [4]


async def test_without_any_router_the_deadline_bounds_the_search() -> None:
    async with two_routers() as (client, one, other):
        one.breaks_after = 3
        other.resume_fails = one.resume_fails = [C.UNAVAILABLE] * 1000
        async with asyncio.timeout(LOST_S):  # so long it would look without a deadline
            with pytest.raises(_NO_ROUTER_IN_TIME):
                await client.generate(token_ids=[1], timeout_s=0.7)


async def test_a_router_of_an_earlier_version_leaves_a_loss_a_loss() -> None:
    async with two_routers() as (client, one, other):
        one.breaks_after, other.knows_resume = 3, False
        with pytest.raises(UnavailableError, match="after 3 tokens; send the request again"):
            await client.generate(token_ids=[1])


async def test_an_answer_of_the_only_router_goes_on_once_it_is_started_again() -> None:
    async with two_routers() as (_, one, _), AsyncClient(one.address) as client:
        one.breaks_after, one.routers, one.resumes_well = 3, [one.address], True
        one.resume_fails = [C.UNAVAILABLE] * 2
        await check_whole(client)
        assert [resume.n_tokens for resume in one.resumes] == [3] * 3


async def test_the_only_known_router_names_another_as_it_stops() -> None:
    async with two_routers() as (_, one, other), AsyncClient(one.address) as client:
        one.routers = [one.address]
        await check_whole(client)
        one.stops_with = [other.address, one.address]
        await check_whole(client, request_id="mine")
        assert [request.request_id for request in other.generates] == ["mine"]


async def test_routers_that_stop_at_once_name_the_one_that_stays() -> None:
    async with two_routers() as (client, one, other), two_routers() as (_, third, _):
        one.breaks_after = 3
        one.stops_with = [other.address, third.address, one.address]
        other.stops_with = [one.address, third.address, other.address]
        await check_whole(client, request_id="mine")
        assert [request.request_id for request in third.generates] == ["mine"]
        assert len(one.generates) + len(other.generates) <= 2


async def test_a_router_that_stops_names_others_to_an_answer_that_comes_to_it() -> None:
    async with two_routers() as (client, one, other), two_routers() as (_, third, _):
        one.breaks_after = 3
        other.stops_with = [third.address, other.address]
        await check_whole(client)
        assert [resume.n_tokens for resume in third.resumes] == [3]
        assert len(other.resumes) == 1


async def test_a_router_that_has_just_started_does_not_pass_for_the_only_one() -> None:
    async with two_routers() as (_, one, _), AsyncClient(one.address) as client:
        one.breaks_after, one.resumes_well = 3, True
        await check_whole(client)
        assert [resume.n_tokens for resume in one.resumes] == [3]


async def test_first_request_of_a_client_finds_the_next_router_behind_a_port() -> None:
    async with two_routers() as (_, one, _), AsyncClient(one.address) as client:
        one.n_lost = 2
        await check_whole(client, request_id="mine")
        assert [request.request_id for request in one.generates] == ["mine"] * 3


async def test_first_request_of_a_client_fails_where_no_router_is_left_behind_its_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resuming, "FRESH_S", 0.5)
    async with two_routers() as (_, one, _), AsyncClient(one.address) as client:
        one.n_lost = 1_000
        with pytest.raises(UnavailableError):
            await client.generate(token_ids=[1])
        assert len(one.generates) > 1
    async with AsyncClient("127.0.0.1:1") as client:
        began = asyncio.get_running_loop().time()
        with pytest.raises(UnavailableError):
            await client.generate(token_ids=[1], timeout_s=90.0)
        assert asyncio.get_running_loop().time() - began < 45.0


async def test_requests_are_spread_and_short_calls_find_a_router_that_answers() -> None:
    async with two_routers() as (client, one, other):
        for _ in range(4):
            await client.generate(token_ids=[1])
        assert len(one.generates) == len(other.generates) == 2
        assert not await client.cancel("x")
        assert one.cancels == other.cancels == ["x"], "it may run at any"


async def test_a_router_that_is_not_there_is_passed_by() -> None:
    async with two_routers() as (_, one, _), AsyncClient(f"127.0.0.1:1,{one.address}") as client:
        for _ in range(3):
            await check_whole(client)
        assert len(one.generates) == 3


async def test_a_client_that_gives_up_while_it_looks_for_a_router_gives_up() -> None:
    async with two_routers() as (client, one, other):
        one.breaks_after = 3
        other.resume_fails = one.resume_fails = [C.UNAVAILABLE] * 1000
        stream = client.stream(token_ids=[1])
        reading = asyncio.create_task(stream.completion())
        while len(other.resumes) < 2:
            await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
