"""The door's checks: each refusal names the field, the actual figure and the limit."""

from typing import Any

import pytest

from twolane.errors import (
    InvalidParameterError,
    InvalidRequestError,
    PermissionDeniedError,
    UnimplementedError,
)
from twolane.params import SamplingParams
from twolane.router.config import LimitsConfig
from twolane.router.limits import check_shape, check_tenant, fit, fit_answer_so_far
from twolane.router.members.model import ModelFacts, Pool, Room
from twolane.router.testing.client import message
from twolane.security.identity import Identity, Role
from twolane.v1 import inference_pb2

LIMITS = LimitsConfig(
    prompt_bytes=100, prompt_tokens=50, max_tokens=64, stop_strings=2, chat_messages=2
)
MODEL = ModelFacts(
    name="m",
    fingerprint="f",
    vocab_size=1000,
    max_context_tokens=64,
    room=Room(Pool(10, 4), Pool(12, 4)),
)


def chat(*turns: Any, **fields: Any) -> Any:
    messages = [inference_pb2.ChatMessage(role=role, content=text) for role, text in turns]
    return inference_pb2.GenerateRequest(chat=inference_pb2.Chat(messages=messages), **fields)


@pytest.mark.parametrize(
    ("request_", "field", "words"),
    [
        (inference_pb2.GenerateRequest(), "prompt", "prompt is empty"),
        (
            inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds()),
            "token_ids",
            "at least 1",
        ),
        (inference_pb2.GenerateRequest(text=""), "text", "the prompt is empty"),
        (message("x" * 101), "len(prompt) in bytes", "101"),
        (message("é" * 51), "len(prompt) in bytes", "102"),
        (message([1] * 51), "len(prompt tokens)", "51"),
        (chat(), "chat", "the chat is empty"),
        (chat(("user", "a"), ("user", "b"), ("user", "c")), "len(chat.messages)", "3"),
        (chat(("user", "a" * 60), ("user", "b" * 60)), "len(chat) in bytes", "128"),
        (chat(("", "a")), "chat", "messages[0].role"),
        (chat(("user", "a"), ("é" * 65, "b")), "len(chat.messages[1].role)", "65"),
        (chat(("é" * 30, "a" * 10), ("é" * 10, "b" * 11)), "len(chat) in bytes", "101"),
        (message([1], priority=101), "priority", "101"),
        (message([1], priority=-101), "priority", "-100 to 100"),
        (message([1], request_id="x" * 65), "len(request_id)", "65"),
        (message([1], max_tokens=0), "max_tokens", "0"),
        (message([1], max_tokens=-5), "max_tokens", "-5"),
        (message([1], max_tokens=65), "max_tokens", "65"),
        (message([1], temperature=-0.1), "temperature", "-0.1"),
        (message([1], temperature=float("nan")), "temperature", "nan"),
        (message([1], top_p=1.5), "top_p", "1.5"),
        (message([1], top_k=-2), "top_k", "-2"),
        (message([1], seed=-1), "seed", "-1"),
        (message([1], min_tokens=9, max_tokens=8), "min_tokens", "9"),
        (message([1], top_logprobs=21), "top_logprobs", "21"),
        (message([1], stop=["a", "b", "c"]), "len(stop)", "3"),
        (message([1], stop=[""]), "len(stop string)", "0"),
        (message([1], stop_token_ids=[-3]), "stop_token_ids", "-3"),
        (inference_pb2.GenerateRequest(text="a", n=-1), "n", "-1"),
    ],
)
def test_bad_shape_is_refused_naming_field_and_figure(
    request_: Any, field: Any, words: Any
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_shape(request_, LIMITS, has_text=True)
    assert caught.value.field == field
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"n": 2}, "n"),
        ({"adapter": "a"}, "adapter"),
        ({"model_version": "v"}, "model_version"),
        ({"constraint": inference_pb2.Constraint(regex="a+")}, "constraint"),
        ({"constraint": inference_pb2.Constraint()}, "constraint"),
    ],
)
def test_reserved_field_is_unimplemented_and_named(fields: Any, name: Any) -> None:
    request = inference_pb2.GenerateRequest(text="a", **fields)
    with pytest.raises(UnimplementedError) as caught:
        check_shape(request, LIMITS, has_text=True)
    assert caught.value.metadata["field"] == name
    assert name in caught.value.message


@pytest.mark.parametrize("where", ["the request", "sampling", "chat", "chat.messages[1]"])
def test_a_field_of_a_newer_contract_is_refused_with_its_number(where: str) -> None:
    request = chat(("user", "a"), ("assistant", "b"))
    part = {
        "the request": request,
        "sampling": request.sampling,
        "chat": request.chat,
        "chat.messages[1]": request.chat.messages[1],
    }[where]
    part.MergeFromString(b"\xba\x3e\x01x")  # field 999: "x"
    request.sampling.SetInParent()
    with pytest.raises(UnimplementedError, match=r"has field 999, which this version") as caught:
        check_shape(request, LIMITS, has_text=True)
    assert caught.value.message.startswith(where)


def test_tenant_may_be_repeated_and_not_chosen() -> None:
    for tenant, named in (("blue", "blue"), ("blue", ""), ("", "")):
        check_tenant(named, Identity(Role.CLIENT, "key", tenant))
    for tenant, named in (("blue", "red"), ("", "red"), ("blue", "blue "), ("blue", "x" * 9_999)):
        with pytest.raises(PermissionDeniedError, match="leave the field unset") as caught:
            check_tenant(named, Identity(Role.CLIENT, "key", tenant))
        assert len(caught.value.message) < 300


@pytest.mark.parametrize("request_", [message("a"), chat(("user", "a")), message([1], stop=["x"])])
def test_without_a_tokenizer_text_is_refused_and_ids_are_served(request_: Any) -> None:
    words = r"tokenizer\.json, which is not there \(tokenizer\.model is not read\)"
    with pytest.raises(InvalidRequestError, match=words):
        check_shape(request_, LIMITS, has_text=False)
    check_shape(message([1]), LIMITS, has_text=False)


@pytest.mark.parametrize(
    ("ids", "params", "field", "words"),
    [
        ([], {}, "prompt", "no tokens"),
        ([1, 1000], {}, "token_ids", "1000"),
        ([-1, 5], {}, "token_ids", "0 to 999"),
        ([1] * 51, {}, "len(prompt tokens)", "51"),
        ([1], {"stop_token_ids": (1000,)}, "stop_token_ids", "1000"),
        ([1], {"logit_bias": {1000: 1.0}}, "logit_bias token", "1000"),
        ([1] * 30, {"max_tokens": 35}, "max_tokens", "is 65; m has a context of 64"),
        ([1] * 30, {"max_tokens": 19}, "max_tokens", "needs 13 pages"),
        ([1] * 30, {"max_tokens": 12}, "max_tokens", "needs 11 pages"),
        ([1] * 30, {"max_tokens": 12}, "max_tokens", "largest prefill worker of m has 10"),
        ([1] * 41, {"max_tokens": 1}, "prompt", "needs 11 pages"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_with_figures(
    ids: Any, params: Any, field: Any, words: Any
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        fit(ids, SamplingParams(**params), MODEL, LIMITS, if_unset=128)
    assert caught.value.field == field
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("ids", "field", "words"),
    [
        ([1, 1000], "resume.token_ids", "1000"),
        ([5, -1], "resume.token_ids", "0 to 999"),
        ([1] * 65, "len(resume.token_ids)", "at most 64"),
    ],
)
def test_answer_that_the_model_cannot_have_given_is_refused_with_figures(
    ids: Any, field: Any, words: Any
) -> None:
    fit_answer_so_far([], MODEL, LIMITS)
    fit_answer_so_far([0, 999] * 32, MODEL, LIMITS)
    with pytest.raises(InvalidRequestError) as caught:
        fit_answer_so_far(ids, MODEL, LIMITS)
    assert caught.value.field == field
    assert words in caught.value.message


def test_what_just_fits_is_served_as_asked() -> None:
    params = SamplingParams(max_tokens=11)  # resumed after 10, P prefills 40 tokens: 10 pages
    assert fit([1] * 30, params, MODEL, LIMITS, if_unset=128) == params


@pytest.mark.parametrize(("n_prompt", "expected"), [(1, 40), (30, 11), (40, 1)])
def test_unset_max_tokens_is_what_fits(n_prompt: Any, expected: Any) -> None:
    params = fit([1] * n_prompt, SamplingParams(), MODEL, LIMITS, if_unset=128)
    assert params.max_tokens == expected


@pytest.mark.parametrize(("if_unset", "min_tokens", "expected"), [(16, 0, 16), (16, 20, 20)])
def test_unset_max_tokens_is_the_default_and_never_below_min_tokens(
    if_unset: int, min_tokens: int, expected: int
) -> None:
    params = SamplingParams(min_tokens=min_tokens)
    assert fit([1], params, MODEL, LIMITS, if_unset=if_unset).max_tokens == expected


def test_min_tokens_beyond_what_fits_are_refused_by_their_name() -> None:
    with pytest.raises(InvalidRequestError, match="min_tokens is 12; it must be at most 11") as e:
        fit([1] * 30, SamplingParams(min_tokens=12), MODEL, LIMITS, if_unset=128)
    assert e.value.field == "min_tokens"


def test_prompt_that_leaves_no_room_for_an_answer_is_refused() -> None:
    small = ModelFacts(
        name="m",
        fingerprint="f",
        vocab_size=1000,
        max_context_tokens=20,
        room=Room(Pool(10, 4), Pool(12, 4)),
    )
    with pytest.raises(InvalidRequestError, match="context of 20"):
        fit([1] * 20, SamplingParams(), small, LIMITS, if_unset=128)


@pytest.mark.parametrize("name", ["\x1b]0;owned\x07", "\x1b[2J", "a\nb", "\x9b31m", "a\u202eb"])
def test_a_label_that_a_terminal_obeys_is_refused(name: str) -> None:
    request = inference_pb2.GenerateRequest(request_id=name)
    request.token_ids.ids.append(1)
    with pytest.raises(InvalidParameterError) as caught:
        check_shape(request, LimitsConfig(), has_text=False)
    assert caught.value.field == "request_id"
