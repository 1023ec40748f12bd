import json

import pytest

from benchmarks.load.caller import Answer
from benchmarks.load.completion_stream import CompletionStream
from benchmarks.load.event_stream import EventReader


def _event(n_told: int | None = None, *, choices: bool = True, text: str = "x") -> bytes:
    usage = None if n_told is None else {"completion_tokens": n_told}
    return json.dumps({"choices": [{"text": text}] if choices else [], "usage": usage}).encode()


def _times(n_output: int, *events: bytes) -> tuple[list[float], str]:
    answer = Answer(0.0)
    stream = CompletionStream(answer, n_output)
    for at_s, event in enumerate(events, 1):
        stream.take(event, float(at_s))
    answer.end(n_output)
    return answer.times_s, answer.failure


def test_events_are_whole_however_the_bytes_arrive() -> None:
    stream = b'data: {"a": 1}\n\n: a comment\r\nevent: x\r\ndata: [DONE]\r\n\r\n'
    for size in (1, 2, 7, len(stream)):
        reader = EventReader()
        parts = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert [data for part in parts for data in reader.feed(part)] == [b'{"a": 1}', b"[DONE]"]


def test_usage_in_every_event_tells_how_many_tokens_share_it() -> None:
    assert _times(5, _event(1), _event(3), _event(5)) == ([1.0, 2.0, 2.0, 3.0, 3.0], "")


def test_without_usage_an_event_is_a_token_and_a_bare_finish_is_none() -> None:
    assert _times(2, _event(), _event(), _event(text="")) == ([1.0, 2.0], "")


def test_tokens_that_only_the_total_tells_of_share_the_last_event() -> None:
    told = _times(5, _event(), _event(), _event(5, choices=False))
    assert told == ([1.0, 2.0, 2.0, 2.0, 2.0], "")


def test_events_that_the_total_does_not_count_were_no_tokens() -> None:
    assert _times(3, _event(), _event(), _event(), _event(2, choices=False)) == (
        [1.0, 2.0],
        "WRONG_LENGTH",
    )


@pytest.mark.parametrize(
    ("event", "failure"),
    [
        (b'{"error": {"message": "full"}}', "ERROR_IN_STREAM"),
        (b"<html>", "NOT_A_COMPLETION"),
        (b"7", "NOT_A_COMPLETION"),
        (b'{"choices": [], "usage": {}}', "NOT_A_COMPLETION"),
    ],
)
def test_what_is_no_completion_is_a_failure(event: bytes, failure: str) -> None:
    assert _times(1, _event(), event)[1] == failure
