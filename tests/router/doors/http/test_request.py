"""What comes in at /v1/completions: taken over field by field, or refused by the field's name."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twolane.errors import InvalidRequestError, TwolaneError, UnimplementedError
from twolane.router.doors.http.completion_request import CompletionRequest, parse_completion
from twolane.router.doors.http.errors import error_body
from twolane.v1 import inference_pb2, sampling_pb2


def messages(raw: bytes) -> list[inference_pb2.GenerateRequest]:
    return parse_completion(raw, max_prompts=4).messages_to_router()


def message(**fields: Any) -> inference_pb2.GenerateRequest:
    (only,) = messages(json.dumps(fields).encode())
    return only


def sampling(**fields: Any) -> sampling_pb2.SamplingParams:
    return message(prompt="a", **fields).sampling


def refusal(raw: bytes) -> dict[str, Any]:
    with pytest.raises((InvalidRequestError, UnimplementedError)) as caught:
        messages(raw)
    error: dict[str, Any] = error_body(caught.value)["error"]
    return error


def test_the_last_of_two_equal_keys_counts() -> None:
    """As with `json.loads`, so with other servers of this API."""
    (message,) = messages(b'{"prompt": "a", "max_tokens": 1, "max_tokens": 2}')
    assert message.sampling.max_tokens == 2


def test_every_sampling_field_arrives() -> None:
    given = {
        "max_tokens": 9, "min_tokens": 2, "temperature": 0.5, "top_k": 3, "top_p": 0.25,
        "min_p": 0.125, "repetition_penalty": 1.5, "presence_penalty": 0.75,
        "frequency_penalty": -0.5, "seed": 2**62, "ignore_eos": True,
    }  # fmt: skip
    got = sampling(**given, stop=["a", "b"], stop_token_ids=[4], logit_bias={"7": -2}, logprobs=3)
    assert {name: getattr(got, name) for name in given} == given
    assert (list(got.stop), list(got.stop_token_ids)) == (["a", "b"], [4])
    assert (dict(got.logit_bias), got.top_logprobs) == ({7: -2.0}, 3)


def test_what_is_not_given_is_left_open() -> None:
    assert sampling() == sampling_pb2.SamplingParams()


def test_null_is_not_given() -> None:
    names = ("max_tokens", "temperature", "seed", "stop", "n", "suffix", "echo", "logprobs", "user")
    assert sampling(**dict.fromkeys(names)) == sampling()


def test_one_stop_string_and_all_of_the_vocabulary_as_vllm_writes_it() -> None:
    got = sampling(stop="END", top_k=-1)
    assert (list(got.stop), got.top_k) == (["END"], 0)


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
def test_a_prompt_of_token_ids_may_be_the_only_one_of_a_list(prompt: Any) -> None:
    assert list(message(prompt=prompt).token_ids.ids) == [1, 2, 3]


@pytest.mark.parametrize("prompt", ["a text", ["a text"]])
def test_a_prompt_of_text_may_be_the_only_one_of_a_list(prompt: Any) -> None:
    assert message(prompt=prompt).text == "a text"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [(["a", "b", "a"], ["a", "b", "a"]), ([[1, 2], [3]], [[1, 2], [3]]), ([[1], []], [[1], []])],
)
def test_several_prompts_are_a_request_each_with_the_same_options(
    prompt: Any, expected: Any
) -> None:
    got = messages(json.dumps({"prompt": prompt, "seed": 3, "max_tokens": 7}).encode())
    assert [m.text if m.HasField("text") else list(m.token_ids.ids) for m in got] == expected
    assert {(m.sampling.seed, m.sampling.max_tokens) for m in got} == {(3, 7)}


def test_fields_that_ask_for_what_one_plain_answer_is_are_taken() -> None:
    assert message(prompt="a", n=1, best_of=1, echo=False, suffix="", user="me").text == "a"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": ["a"] * 5}, "prompt"),
        ({"prompt": [[1]] * 5}, "prompt"),
        ({"prompt": [[1], 2]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [[1], [-2]]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1, True]}, "prompt[1]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": [2**70]}, "prompt"),
        ({"prompt": "a", "n": 2}, "n"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "messages": []}, "messages"),
        ({"prompt": "a", "functions": []}, "functions"),
        ({"prompt": "a", "priority": 1}, "priority"),
        ({"prompt": "a", "model": 7}, "model"),
        ({"prompt": "a", "stream": 1}, "stream"),
        ({"prompt": "a", "max_tokens": "9"}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 2**70}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 16, "min_tokens": 17}, "min_tokens"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "seed": 2**63}, "seed"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "stop": ["a"] * 17}, "stop"),
        ({"prompt": "a", "stop": ""}, "stop"),
        ({"prompt": "a", "logit_bias": {"5": "x"}}, "logit_bias[...]"),
        ({"prompt": "a", "timeout_s": 0}, "timeout_s"),
        ({"prompt": "a", "timeout_s": -1.5}, "timeout_s"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "a", "stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    ],
)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str) -> None:
    error = refusal(json.dumps(fields).encode())
    assert (error["param"], error["type"]) == (param, "invalid_request_error")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[1]",
        b'{"prompt": NaN}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a\\udc00"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "a", "model": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": "a", "x": ' + b"[" * 100_000,
        b'{"prompt": "a"} {"prompt": "b"}',
    ],
)
def test_what_is_no_such_json_is_an_invalid_request(raw: bytes) -> None:
    assert refusal(raw)["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("raw", "half", "at"),
    [
        (rb'{"prompt": "\ud800"}', r"\ud800", 12),
        (rb'{"prompt": "\uDFFF"}', r"\uDFFF", 12),
        (rb'{"prompt": "a\udc00 and more"}', r"\udc00", 13),
        (rb'{"prompt": "\ud800\u0041"}', r"\ud800", 12),
        (rb'{"prompt": "\ud83d\ude00\\\ud83d\ud83d"}', r"\ud83d", 26),
        (rb'{"\ud800": 1}', r"\ud800", 2),
    ],
)
def test_half_a_surrogate_pair_is_told_with_its_place(raw: bytes, half: str, at: int) -> None:
    text = refusal(raw)["message"]
    assert f"{half} at byte {at} is one half of a surrogate pair" in text


@pytest.mark.parametrize("raw", [rb'"\ud83d', rb'"\ud83d\ude', rb'"\\ud800', rb'"\ud83d\ude00'])
def test_a_body_that_is_cut_off_is_called_truncated(raw: bytes) -> None:
    assert "truncated" in refusal(rb'{"prompt": ' + raw)["message"]


def test_a_field_of_endless_name_is_refused_in_few_words() -> None:
    error = refusal(json.dumps({"prompt": "a", "x" * 100_000: 1}).encode())
    assert error["param"].startswith("xxx")
    assert len(error["param"]) + len(error["message"]) < 3000


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_NAMES = st.sampled_from([*CompletionRequest.__struct_fields__, "tools"])


# A first draw of text builds a table of all characters, which takes seconds on a busy machine.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(_NAMES, _VALUES, max_size=5), st.sampled_from(["a", [1, 2]]))
def test_whatever_comes_is_taken_or_refused(fields: dict[str, Any], prompt: Any) -> None:
    raw = json.dumps({"prompt": prompt, **fields}).encode()
    with contextlib.suppress(InvalidRequestError, UnimplementedError):
        assert all(message.WhichOneof("prompt") for message in messages(raw))


def test_every_error_of_the_tree_has_a_body() -> None:
    def kinds(of: type[TwolaneError]) -> list[type[TwolaneError]]:
        return [kind for sub in of.__subclasses__() for kind in (sub, *kinds(sub))]

    # a command's own errors end that command: no server has them
    for kind in (each for each in kinds(TwolaneError) if each.__module__ == "twolane.errors"):
        error = kind.__new__(kind)
        TwolaneError.__init__(error, "what to do")
        error.__dict__.setdefault("field", "")
        assert error_body(error)["error"]["message"] == "what to do", kind
