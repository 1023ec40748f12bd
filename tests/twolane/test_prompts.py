from __future__ import annotations

from typing import Any

import pytest

from twolane.config import ClientConfig
from twolane.errors import InvalidParameterError, InvalidRequestError
from twolane.params import SamplingParams
from twolane.prompts import build_request
from twolane.rpc.channel_options import MAX_MESSAGE_BYTES


@pytest.mark.parametrize(
    ("prompt", "options", "field", "message"),
    [
        (5, {}, "prompt", "prompt is 5; it must be text"),
        ([1, 2, 3], {}, "prompt", "token_ids="),
        ("lone \ud800", {}, "prompt", "surrogates"),
        ("a", {"max_tokens": "a"}, "max_tokens", "an integer"),
        ("a", {"max_tokens": 2**40}, "max_tokens", str(2**31 - 1)),
        ("a", {"stop": 5}, "stop", "a list"),
        ("a", {"stop": ["\ud800"]}, "stop", "surrogates"),
        ("a", {"timeout_s": "a"}, "timeout_s", "a number of seconds"),
        ("a", {"timeout_s": 0}, "timeout_s", "above 0"),
        ("a", {"timeout_s": -1.5}, "timeout_s", "above 0"),
        ("a", {"request_id": 7}, "request_id", "text"),
        ("a", {"priority": 101}, "priority", "-100 to 100"),
        ("a", {"params": {}}, "params", "a SamplingParams"),
        ("a", {"max_token": 5}, "max_token", "did you mean max_tokens?"),
        ("a", {"zzzzzz": 5}, "zzzzzz", "there are max_tokens"),
        ("a", {"response_format": {}}, "response_format", "there are max_tokens"),  # unlike any
        (None, {"token_ids": "12"}, "token_ids", "a list of integers"),
        (None, {"token_ids": [1, "b"]}, "token_ids[1]", "an integer"),
        (None, {"token_ids": [-1]}, "token_ids[0]", "0 to"),
        (None, {"messages": "hello"}, "messages", "a list of messages"),
        (None, {"messages": ["hello"]}, "messages[0]", '"role": "user"'),
        (None, {"messages": [{"role": "user"}]}, "messages[0]", "lacks 'content'"),
        (
            None,
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]},
            "messages[0].tool_calls",
            "has 'tool_calls', which is not served",
        ),
        (
            None,
            {"messages": [{"role": "user", "content": "x", "name": "Ann"}]},
            "messages[0].name",
            "a message has role and content",
        ),
        (
            None,
            {"messages": [{"role": "user", "content": None}]},
            "messages[0].content",
            "it must be text",
        ),
        (
            None,
            {"messages": [{"role": "robot", "content": "a"}]},
            "messages[0].role",
            "one of system, user, assistant",
        ),
    ],
)
def test_what_is_wrong_with_a_request_is_told_with_its_field(
    prompt: Any, options: Any, field: str, message: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build_request(prompt, options)
    assert caught.value.field == field
    assert message in caught.value.message


@pytest.mark.parametrize(
    "name",
    [
        "tools", "tool_choice", "chat_template_kwargs", "continue_final_message",
        "skip_special_tokens", "include_stop_str_in_output", "n", "best_of", "echo",
        "prompt_logprobs", "bad_words", "allowed_token_ids", "response_format", "guided_json",
        "guided_regex", "truncate_prompt_tokens", "add_special_tokens",
    ],
)  # fmt: skip
def test_options_of_vllm_that_are_not_served_are_refused_by_name(name: str) -> None:
    options: Any = {name: 1}
    with pytest.raises(InvalidRequestError, match=f"there is no option {name};") as e:
        build_request("a", options)
    assert e.value.field == name


@pytest.mark.parametrize(
    ("turn", "field"),
    [
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, "messages[0].content"),
        ({"role": "assistant", "content": "x", "reasoning_content": "y"},
         "messages[0].reasoning_content"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
    ],
)  # fmt: skip
def test_turns_that_are_not_served_are_refused_by_name(turn: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build_request(None, {"messages": [turn]})
    assert caught.value.field == field


def test_keys_of_a_message_that_say_nothing_are_passed_over() -> None:
    messages: Any = [{"role": "user", "content": "x", "tool_calls": None, "refusal": None}]
    (sent,) = build_request(None, {"messages": messages}).chat.messages
    assert (sent.role, sent.content) == ("user", "x")


def test_only_options_that_are_given_are_sent_and_params_are_complete() -> None:
    given = build_request("a", {"temperature": 1.0, "max_tokens": None}).sampling
    assert [field.name for field, _ in given.ListFields()] == ["temperature"]
    complete = build_request("a", {"params": SamplingParams(top_k=5), "top_p": 0.5}).sampling
    assert (complete.top_k, complete.top_p, complete.temperature) == (5, 0.5, 1.0)
    assert complete.HasField("min_p")
    assert not complete.HasField("max_tokens")


def test_a_prompt_that_fits_no_message_is_refused_with_both_figures() -> None:
    with pytest.raises(InvalidRequestError, match=r"17,000,\d{3} bytes.* at most 16,777,216"):
        build_request("x" * 17_000_000, {})
    assert build_request("x" * (MAX_MESSAGE_BYTES - 1000), {}).text


def test_a_client_config_wants_times_that_can_pass() -> None:
    with pytest.raises(InvalidParameterError, match="call_timeout_s is 0"):
        ClientConfig(call_timeout_s=0)
