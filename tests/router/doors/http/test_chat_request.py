"""What comes in at /v1/chat/completions: taken over field by field, or refused by its name."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twolane.errors import InvalidRequestError, UnimplementedError
from twolane.router.doors.http.chat_request import ChatRequest, Message, parse_chat
from twolane.router.doors.http.errors import error_body
from twolane.v1 import inference_pb2

HELLO = {"role": "user", "content": "hello"}


def message(**fields: Any) -> inference_pb2.GenerateRequest:
    body = json.dumps({"messages": [HELLO], **fields}).encode()
    (only,) = parse_chat(body).messages_to_router()
    return only


def turns(*said: Any) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in message(messages=said).chat.messages]


def refusal(**fields: Any) -> dict[str, Any]:
    with pytest.raises((InvalidRequestError, UnimplementedError)) as caught:
        message(**fields)
    error: dict[str, Any] = error_body(caught.value)["error"]
    return error


def test_roles_and_texts_arrive_as_they_are() -> None:
    said = [("system", "be brief "), ("user", "hi"), ("assistant", ""), ("observer", "\n")]
    assert turns(*({"role": role, "content": text} for role, text in said)) == said


def test_parts_of_text_are_lines_of_one_content() -> None:
    parts = [{"type": "text", "text": "a"}, {"text": "b", "type": "text"}]
    assert turns({"role": "user", "content": parts}, {"role": "user", "content": []}) == [
        ("user", "a\nb"),
        ("user", ""),
    ]


def test_sampling_options_arrive_and_no_bound_is_none() -> None:
    given = {"temperature": 0.5, "top_k": 3, "min_p": 0.125, "seed": 2**62, "ignore_eos": True}
    got = message(**given, stop="END").sampling
    assert {name: getattr(got, name) for name in given} == given
    assert list(got.stop) == ["END"]
    assert not got.HasField("max_tokens")
    assert not got.HasField("top_logprobs")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_bound_has_two_names(name: str) -> None:
    assert message(**{name: 9}).sampling.max_tokens == 9
    assert refusal(**{name: 0})["param"] == name


def test_log_probabilities_are_asked_for_by_two_fields() -> None:
    assert message(logprobs=True).sampling.top_logprobs == 0
    assert message(logprobs=True).sampling.HasField("top_logprobs")
    assert message(logprobs=True, top_logprobs=4).sampling.top_logprobs == 4
    assert not message(logprobs=False).sampling.HasField("top_logprobs")


def test_null_is_not_given_and_fields_that_ask_for_one_plain_answer_are_taken() -> None:
    optional = {*ChatRequest.__struct_fields__} - {"messages"}
    assert message(**dict.fromkeys(optional)) == message()
    assert message(**ChatRequest.plain, user="me", safety_identifier="x") == message()
    of_a_message = dict.fromkeys({*Message.__struct_fields__} - {"role", "content"})
    assert turns({**HELLO, **of_a_message}) == [("user", "hello")]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [HELLO, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
        ({"messages": [HELLO, {**HELLO, "name": "me"}]}, "messages[1].name"),
        ({"messages": [{**HELLO, "tool_calls": []}]}, "messages[0].tool_calls"),
        ({"messages": [{**HELLO, "tool_call_id": "a"}]}, "messages[0].tool_call_id"),
        ({"messages": [{**HELLO, "reasoning_content": "a"}]}, "messages[0].reasoning_content"),
        ({"messages": [{**HELLO, "frobnicate": 1}]}, "messages[0].frobnicate"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        ({"prompt": "a"}, "prompt"),
        ({"frobnicate": 1}, "frobnicate"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"store": True}, "store"),
        ({"chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"continue_final_message": False}, "continue_final_message"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"best_of": 1}, "best_of"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stream_options": {}}, "stream_options"),
    ],
)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str) -> None:
    error = refusal(**fields)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_MESSAGE_KEYS = st.sampled_from([*Message.__struct_fields__, "image"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(ChatRequest.__struct_fields__), _VALUES, max_size=4),
    st.lists(st.dictionaries(_MESSAGE_KEYS, _VALUES, max_size=3) | st.just(HELLO), max_size=3),
)
def test_whatever_comes_is_taken_or_refused(fields: dict[str, Any], said: list[Any]) -> None:
    with contextlib.suppress(InvalidRequestError, UnimplementedError):
        assert message(**{"messages": said, **fields}).WhichOneof("prompt") == "chat"
