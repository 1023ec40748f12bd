from typing import Any

import pytest

from benchmarks.load.caller import Answer, now_s
from benchmarks.load.completion_stream import CompletionStream
from benchmarks.load.openai_caller import OpenAiCaller
from benchmarks.load.target import TargetError, Told, ask
from tests.benchmarks.completion_double import CompletionDouble, serve


async def _call(double: CompletionDouble, n_output: int, timeout_s: float = 30.0) -> Answer:
    with serve(double):
        async with OpenAiCaller(double.url, "double") as caller:
            answer = Answer(now_s())
            await caller.call(caller.build([1, 2, 3], n_output, seed=7), answer, timeout_s)
            answer.end(n_output)
            return answer


async def test_a_completion_is_asked_for_with_its_length_forced() -> None:
    double = CompletionDouble(service_s=0.05, gap_s=0.02)
    answer = await _call(double, 4)
    assert (answer.failure, len(answer.times_s)) == ("", 4)
    assert answer.times_s[0] >= 0.05
    assert answer.times_s[3] >= 0.1, "three gaps more, however late it was read"
    assert [*answer.times_s] == sorted(answer.times_s)
    asked = double.requests[0]
    wanted: dict[str, Any] = {
        "model": "double", "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0.0, "seed": 7,
        "ignore_eos": True, "stream": True,
    }  # fmt: skip
    assert {name: asked[name] for name in wanted} == wanted
    assert asked["stream_options"]["include_usage"] is True


@pytest.mark.parametrize("usage", ["each", "last"])
async def test_several_tokens_in_an_event_are_counted(
    usage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on when its last event has been read: none is read with another."""
    n_taken, take = 0, CompletionStream.take

    def counted(self: CompletionStream, data: bytes, at_s: float) -> None:
        nonlocal n_taken
        take(self, data, at_s)
        n_taken += 1

    monkeypatch.setattr(CompletionStream, "take", counted)
    answer = await _call(CompletionDouble(together=4, usage=usage, n_read=lambda: n_taken), 10)
    assert answer.failure == ""
    assert len(answer.times_s) == 10
    assert len(set(answer.times_s)) == 3, "three events"


@pytest.mark.parametrize(
    ("trouble", "failure"),
    [
        ("refuse", "HTTP_429"),
        ("error", "ERROR_IN_STREAM"),
        ("nonsense", "NOT_A_COMPLETION"),
        ("short", "WRONG_LENGTH"),
        ("cut", "UNAVAILABLE"),
    ],
)
async def test_trouble_of_the_server_is_the_answers_failure(trouble: str, failure: str) -> None:
    assert (await _call(CompletionDouble(trouble=trouble), 5)).failure == failure


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with OpenAiCaller("http://127.0.0.1:1", "double") as caller:
        answer = Answer(now_s())
        await caller.call(caller.build([1], 1, seed=0), answer, 5.0)
    assert answer.failure == "UNAVAILABLE"


async def test_an_answer_that_takes_too_long_is_given_up() -> None:
    assert (await _call(CompletionDouble(service_s=20.0), 1, 0.1)).failure == "DEADLINE_EXCEEDED"


async def test_a_server_is_asked_for_its_model_and_the_user_for_the_rest() -> None:
    with serve(CompletionDouble()) as double:
        target = await ask("one", [double.url])
        assert (target.model, target.vocab_size, target.max_context_tokens) == ("double", 100, 256)
    with serve(CompletionDouble(tells_lengths=False)) as double:
        with pytest.raises(TargetError, match="does not tell its vocab_size"):
            await ask("one", [double.url])
        told = Told(vocab_size=50, max_context_tokens=64)
        target = await ask("one", [double.url], told=told)
        assert (target.vocab_size, target.max_context_tokens) == (50, 64)


async def test_a_server_that_never_answers_is_told_with_its_last_problem() -> None:
    told = ""
    for timeout_s in (0.2, 2.0, 20.0):  # on a busy machine it may end before the first attempt
        with pytest.raises(TargetError, match="not ready: ") as raised:
            await ask("one", ["http://127.0.0.1:1"], timeout_s=timeout_s)
        told = str(raised.value)
        if "no answer yet" not in told:
            break
    assert "not ready: Cannot connect" in told
