"""A second router goes on with an answer of a first one: tokens, text and stop strings are those of
an undisturbed run, and no token and no text comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from twolane.errors import InvalidParameterError, TakenOverError, UnknownSubmissionError
from twolane.router.config import RouterConfig
from twolane.router.router import Router
from twolane.router.store import Found, LocalStore, Placement
from twolane.router.testing.client import ask, message, resume
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import VOCAB, expected_answer
from twolane.router.text.codec import TextCodec
from twolane.security.keys import TenantLimits
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import inference_pb2, worker_pb2

TEXT = "naïve café, 日本語のテキスト, Ελληνικά, 🙂🙃: once upon a time there was a fox. "


@dataclass
class Part:
    """What a client has of an answer."""

    first: inference_pb2.GenerateResponse
    tokens: list[int]
    text: str = ""
    finish_reason: int = 0


@dataclass
class Stage:
    """A router that is lost, its successor, and their workers."""

    cluster: ScriptedCluster
    text: TextCodec | None
    router: Router
    more: dict[str, Any] = field(default_factory=dict)  # of every router

    async def begin(self, request: inference_pb2.GenerateRequest, n_tokens: int) -> Part:
        """At the first router, which is killed when its client has so many tokens."""
        answer = self.router.generate(request)
        part = Part(await anext(answer), [])
        while len(part.tokens) < n_tokens:
            hear(part, await anext(answer))
        for worker in self.cluster.workers.values():
            worker.cut()  # so that no last word is heard
        self.cluster.router_announce = None
        await answer.aclose()
        await self.router.__aexit__(None, None, None)
        return part

    async def succeed(self) -> Router:
        """Another router, which knows the workers."""
        self.router = Router(RouterConfig(router_id="second"), self.cluster, self.text, **self.more)
        await self.router.__aenter__()
        self.cluster.router_announce = self.router.announce
        for worker in self.cluster.workers.values():
            if not worker.is_dead:
                self.cluster.announce(worker)
        await asyncio.sleep(2.5)
        return self.router


def hear(part: Part, response: inference_pb2.GenerateResponse) -> None:
    for token in response.tokens:
        assert token.index == len(part.tokens), "a token was lost or came twice"
        part.tokens.append(token.token_id)
    part.text += response.text
    part.finish_reason = response.finish_reason


def play(
    script: Callable[[Stage], Awaitable[None]],
    text: TextCodec | None = None,
    more: dict[str, Any] | None = None,
    **knobs: object,
) -> None:
    async def main() -> None:
        cluster = ScriptedCluster()
        router = Router(RouterConfig(), cluster, text, **(more or {}))
        await router.__aenter__()
        cluster.router_announce = router.announce
        for worker_id in ("p0", "d0"):
            cluster.start_worker(worker_id, **knobs)
        await asyncio.sleep(0.1)
        stage = Stage(cluster, text, router, more or {})
        await script(stage)
        stage.router.check_integrity()
        assert not stage.router.status().requests
        await stage.router.__aexit__(None, None, None)
        await asyncio.sleep(1.0)
        cluster.assert_clean()

    with virtual_time_runner() as runner:
        runner.run(main())


def wanted(part: Part, takeover: int = 1) -> inference_pb2.ResumeRequest:
    return inference_pb2.ResumeRequest(
        submission_id=part.first.submission_id,
        resume_token=part.first.resume_token,
        takeover=takeover,
        n_tokens=len(part.tokens),
        n_text_bytes=len(part.text.encode()),
    )


async def rest(router: Router, part: Part) -> inference_pb2.GenerateResponse:
    """Into `part`; returns the last message."""
    responses = [response async for response in resume(router, wanted(part))]
    for response in responses:
        hear(part, response)
    assert responses[0].seed == part.first.seed
    return responses[-1]


@pytest.mark.parametrize("n_tokens", [1, 7, 20])
@pytest.mark.parametrize("stop", [(), ("was a",)])
@pytest.mark.parametrize("step_s", [0.02, 0.0])
def test_text_goes_on_in_the_middle_of_characters_and_stop_strings(
    n_tokens: int, stop: tuple[str, ...], step_s: float, codec: TextCodec
) -> None:
    """With steps of no time the rows have ended before the second router asks for them."""
    prompt = list(codec.encode(TEXT))
    request = message(prompt, max_tokens=len(prompt), stop=stop)
    expected: list[Part] = []

    async def undisturbed(stage: Stage) -> None:
        outcome = await ask(stage.router, request)
        expected.append(Part(outcome.first, outcome.tokens, outcome.text, outcome.finish_reason))

    async def disturbed(stage: Stage) -> None:
        part = await stage.begin(request, n_tokens)
        last = await rest(await stage.succeed(), part)
        assert part.tokens == expected[0].tokens
        assert part.text == expected[0].text
        assert part.finish_reason == expected[0].finish_reason
        assert (last.ledger.takeovers, last.ledger.attempts) == (1, 1)

    knobs: dict[str, Any] = {"echoes": True, "step_s": step_s, "prefill_s": 0.0, "transfer_s": 0.0}
    play(undisturbed, codec, **knobs)
    play(disturbed, codec, **knobs)


def test_client_that_knows_more_than_the_rows_is_told_to_ask_again() -> None:
    async def script(stage: Stage) -> None:
        part = await stage.begin(message([5, 6, 7], max_tokens=60), 10)
        router = await stage.succeed()
        part.tokens += [1] * 1000
        with pytest.raises(UnknownSubmissionError, match="tokens of the answer are left"):
            await rest(router, part)

    play(script)


@pytest.mark.parametrize("n_tokens", [3, 59, 60])
def test_answer_of_lost_rows_is_computed_from_what_the_client_has(n_tokens: int) -> None:
    expected: list[int] = []

    async def script(stage: Stage) -> None:
        request = message([5, 6, 7], max_tokens=60)
        expected.extend((await ask(stage.router, request)).tokens)
        part = await stage.begin(request, min(n_tokens, 50))
        stage.cluster.start_worker("p0")
        stage.cluster.start_worker("d0")
        router = await stage.succeed()
        with pytest.raises(UnknownSubmissionError, match="no worker"):
            await rest(router, part)
        request.request_id = part.first.request_id
        request.resume.submission_id = part.first.submission_id
        request.resume.resume_token = part.first.resume_token
        request.resume.takeover = 2
        request.resume.token_ids.extend(expected[:n_tokens])
        part.tokens = expected[:n_tokens]
        async for response in router.generate(request):
            hear(part, response)
        assert part.tokens == expected
        assert part.finish_reason
        assert response.ledger.takeovers == 2

    play(script)


def test_second_ask_at_the_same_router_ends_the_first_stream_and_goes_on() -> None:
    async def script(stage: Stage) -> None:
        router = stage.router
        request = message([5, 6, 7], max_tokens=60)
        expected = (await ask(router, request)).tokens
        first = asyncio.create_task(ask(router, request))
        await asyncio.sleep(0.3)
        (running,) = router._dispatcher.board.requests.values()
        job = running.job
        part = Part(
            inference_pb2.GenerateResponse(
                submission_id=job.submission_id,
                resume_token=job.resume_token,
                seed=job.params.seed,
            ),
            [],
        )
        await asyncio.sleep(2.0 - 0.3)
        await rest(router, part)
        assert part.tokens == expected
        assert isinstance((await first).error, TakenOverError)
        nobody = wanted(part)
        nobody.submission_id = "nobody"
        with pytest.raises(UnknownSubmissionError):
            await anext(resume(router, nobody))

    play(script, step_s=0.1)


def test_adopted_row_is_adopted_again_when_a_session_to_its_worker_opens() -> None:
    """The worker may have been out of reach when the others were asked."""

    async def script(stage: Stage) -> None:
        request = message([5, 6, 7], max_tokens=300)
        expected = (await ask(stage.router, request)).tokens
        part = await stage.begin(request, 10)
        router, d0 = await stage.succeed(), stage.cluster.workers["d0"]
        resuming = asyncio.create_task(rest(router, part))
        await asyncio.sleep(0.3)
        d0.commands.clear()
        d0.cut()
        await resuming
        assert part.tokens == expected
        said = [command.WhichOneof("command") for command in d0.commands]
        assert said.index("adopt") == said.index("attach") - 1

    play(script, step_s=0.02)


@pytest.mark.parametrize(
    "change",
    [
        {"submission_id": "s" * 65},
        {"request_id": "r" * 65, "submission_id": ""},
        {"resume_token": b"short"},
        {"takeover": 70_000},
        {"n_tokens": -1},
    ],
)
def test_malformed_resume_is_refused_by_field(change: dict[str, object]) -> None:
    async def script(stage: Stage) -> None:
        fields = {"submission_id": "s", "resume_token": b"x" * 16, "takeover": 1} | change
        with pytest.raises(InvalidParameterError, match=next(iter(change))):
            await anext(resume(stage.router, inference_pb2.ResumeRequest(**fields)))  # type: ignore[arg-type]

    play(script)


@pytest.mark.parametrize("token_id", [-1, VOCAB])
def test_token_that_the_model_does_not_have_is_refused_in_what_a_client_has(token_id: int) -> None:
    async def script(stage: Stage) -> None:
        request = message([5, 6, 7], max_tokens=60)
        request.resume.submission_id, request.resume.resume_token = "s", b"x" * 16
        request.resume.takeover = 1
        request.resume.token_ids.extend([5, token_id, 6])
        with pytest.raises(InvalidParameterError, match=f"{token_id}; it must be 0 to") as caught:
            await anext(stage.router.generate(request))
        assert caught.value.field == "resume.token_ids"

    play(script)


def test_running_answer_is_not_disturbed_by_a_resume_with_another_token() -> None:
    """Even if it names another request id, under which nothing runs."""

    async def script(stage: Stage) -> None:
        router, store = stage.router, stage.router._dispatcher.board.store
        assert isinstance(store, LocalStore)
        running = asyncio.create_task(ask(router, message([5, 6, 7], max_tokens=60)))
        await asyncio.sleep(0.3)
        (name,) = router._dispatcher.board.requests
        intruder = message([5, 6, 7], max_tokens=60, request_id="another")
        intruder.resume.submission_id, intruder.resume.resume_token = name, b"x" * 16
        intruder.resume.takeover = 1
        with pytest.raises(UnknownSubmissionError, match="no such answer"):
            await anext(router.generate(intruder))
        assert len(store) == 1
        assert (await running).error is None
        assert not len(store)

    play(script, step_s=0.02)


class Index(LocalStore):
    """Shared by all routers. With an `error` it tells of workers that have nothing."""

    def __init__(self, error: str = "") -> None:
        super().__init__()
        self.at: dict[str, Placement] = {}
        self.error = error

    def place(self, submission_id: str, placement: Placement) -> None:
        self.at[submission_id] = placement

    async def find(self, submission_id: str) -> Found | None:
        at = self.at[submission_id]
        if self.error == "old attempt":
            at = at._replace(attempt=at.attempt - 1)
        elif self.error == "dead worker":
            at = at._replace(decode_epoch=1)
        elif self.error == "other workers":
            at = at._replace(prefill_epoch=at.decode_epoch, decode_epoch=at.prefill_epoch)
        return Found("first", "other" if self.error == "tenant" else "", at)


@pytest.mark.parametrize("error", ["", "old attempt", "dead worker", "tenant"])
def test_rows_are_adopted_where_the_index_says_and_looked_for_where_it_is_wrong(
    error: str,
) -> None:
    async def script(stage: Stage) -> None:
        request = message([5, 6, 7], max_tokens=60)
        expected = (await ask(stage.router, request)).tokens
        part = await stage.begin(request, 10)
        router, d0 = await stage.succeed(), stage.cluster.workers["d0"]
        d0.commands.clear()
        began = asyncio.get_running_loop().time()
        await rest(router, part)
        assert part.tokens == expected
        said = [command.WhichOneof("command") for command in d0.commands]
        assert ("find" in said) == bool(error)
        assert asyncio.get_running_loop().time() - began < 2.0
        assert not [name for name in router.status().counters if name.startswith("resumes")]

    play(script, more={"store": Index(error)}, step_s=0.02)


def test_tenant_pays_its_next_router_for_what_comes_after_the_takeover() -> None:
    quota = TenantLimits(tokens_per_min=1_000, requests_per_s=1.0)

    async def script(stage: Stage) -> None:
        part = await stage.begin(message([1] * 300, max_tokens=60), 10)
        router = await stage.succeed()
        await rest(router, part)
        left = {level.name: level.remaining for level in router.quotas("")}
        assert 1_000 - 60 <= left["tokens"] <= 1_000
        assert left["requests"] == 1.0

    play(script, more={"limits_of": lambda tenant: quota}, step_s=0.02)


def test_answer_that_ends_while_its_own_router_takes_it_over_is_not_begun_again() -> None:
    """Its last tokens are told under a row number that is over, and its end is told before them."""

    async def script(stage: Stage) -> None:
        worker = stage.cluster.workers["d0"]
        attach_row = worker._on_attach

        def end_and_attach(attach: worker_pb2.Attach) -> None:
            for row in list(worker.rows.values()):
                while row.phase == "decode":
                    worker._step(row)
            attach_row(attach)

        await asyncio.sleep(2.5)  # until then workers may be missing, and are waited for
        answer = stage.router.generate(message([1, 2], max_tokens=20))
        part = Part(await anext(answer), [])
        while len(part.tokens) < 5:
            hear(part, await anext(answer))
        worker._on_attach = end_and_attach  # type: ignore[method-assign]
        await rest(stage.router, part)
        assert part.tokens == expected_answer([1, 2], 20)
        counters = stage.router.status().counters
        assert not [name for name in counters if name.startswith("resumes")]
        await answer.aclose()

    play(script)
