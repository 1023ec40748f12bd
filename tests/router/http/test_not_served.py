"""What OpenAI's and vLLM's clients may ask for and is not served: refused, each by its name."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from twolane.errors import InvalidRequestError, TwolaneError, UnimplementedError
from twolane.router.doors.http.chat_request import parse_chat
from twolane.router.doors.http.completion_request import parse_completion
from twolane.router.doors.http.errors import error_body

OF_BOTH: dict[str, Any] = {
    "n": 2, "skip_special_tokens": False, "include_stop_str_in_output": True,
    "prompt_logprobs": 1, "bad_words": ["x"], "allowed_token_ids": [1], "guided_json": {},
    "guided_regex": "a", "guided_choice": ["a"], "guided_grammar": "a", "structured_outputs": {},
    "truncate_prompt_tokens": 5, "add_special_tokens": False, "use_beam_search": True,
    "length_penalty": 2.0, "spaces_between_special_tokens": False, "priority": 1,
    "response_format": {"type": "json_object"}, "logits_processors": ["x"], "lora": "x",
}  # fmt: skip
OF_COMPLETIONS: dict[str, Any] = {"best_of": 2, "echo": True, "suffix": "x", "prompt_embeds": "x"}
OF_CHAT: dict[str, Any] = {
    "tools": [{"type": "function"}], "tool_choice": "required", "functions": [{"name": "f"}],
    "chat_template": "x", "chat_template_kwargs": {"enable_thinking": False}, "documents": [{}],
    "continue_final_message": True, "reasoning_effort": "low", "modalities": ["audio"],
    "echo": True, "add_generation_prompt": False, "mm_processor_kwargs": {}, "store": True,
}  # fmt: skip
HELLO = {"role": "user", "content": "hello"}


def refused(path: str, **fields: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"messages": [HELLO]} if path == "chat" else {"prompt": "a"}
    body = json.dumps(usual | fields).encode()
    parse = parse_chat if path == "chat" else partial(parse_completion, max_prompts=8)
    with pytest.raises((InvalidRequestError, UnimplementedError)) as caught:
        parse(body).messages_to_router()
    error: dict[str, Any] = error_body(caught.value)["error"]
    return error


@pytest.mark.parametrize("name", [*OF_BOTH, *OF_COMPLETIONS])
def test_completions_refuse_by_name(name: str) -> None:
    error = refused("completions", **{name: {**OF_BOTH, **OF_COMPLETIONS}[name]})
    assert name in error["message"]
    assert error["param"] == name


@pytest.mark.parametrize("name", [*OF_BOTH, *OF_CHAT])
def test_chat_refuses_by_name(name: str) -> None:
    error = refused("chat", **{name: {**OF_BOTH, **OF_CHAT}[name]})
    assert name in error["message"]
    assert error["param"] == name


@pytest.mark.parametrize(
    ("turn", "name"),
    [
        ({"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}, "tool_calls"),
        ({"role": "assistant", "content": "x", "reasoning_content": "y"}, "reasoning_content"),
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, "tool_call_id"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "image_url"),
    ],
)
def test_turns_of_a_chat_are_refused_by_what_they_have(turn: dict[str, Any], name: str) -> None:
    assert name in refused("chat", messages=[turn])["message"]


@pytest.mark.parametrize("path", ["chat", "completions"])
def test_what_does_not_change_an_answer_is_ignored(path: str) -> None:
    usual: dict[str, Any] = {"messages": [HELLO]} if path == "chat" else {"prompt": "a"}
    ignored = {
        "user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k",
        "prompt_cache_retention": "24h", "stream": True,
        "stream_options": {"include_obfuscation": False},
    }  # fmt: skip
    parse = parse_chat if path == "chat" else partial(parse_completion, max_prompts=8)
    asked = parse(json.dumps(usual | ignored).encode()).messages_to_router()
    assert asked == parse(json.dumps(usual).encode()).messages_to_router()
    if path == "chat":
        parse_chat(json.dumps(usual | {"store": False}).encode())


@pytest.mark.parametrize(
    ("seed", "given"),
    [(0, 0), (2**63 - 1, 2**63 - 1), (-1, None), (-2, 2**63 - 2), (-(2**63), 0)],
)
def test_seeds_may_be_any_of_64_bits_with_a_sign(seed: int, given: int | None) -> None:
    body = json.dumps({"messages": [HELLO], "seed": seed}).encode()
    (asked,) = parse_chat(body).messages_to_router()
    assert (asked.sampling.seed if asked.sampling.HasField("seed") else None) == given


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**63])
def test_seeds_of_more_bits_are_refused(seed: int) -> None:
    assert refused("chat", seed=seed)["param"] == "seed"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"seed": "x"}', "seed is a string; it must be an integer or null"),
        ('{"stop": ["a", 5]}', "stop[1] is an integer; it must be a string"),
        ('{"logit_bias": {"a": 1}}', "a key of logit_bias is a string; it must be an integer"),
        ('{"stream": 1.5}', "stream is a number; it must be a boolean or null"),
        ('{"foo": 1}', "foo is not a field of this request"),
        ('{"stream_options": {"x": 1}}', "stream_options.x is not a field of this request"),
        (
            '{"stream_options": {"include_obfuscation": true}}',
            "stream_options.include_obfuscation: only false is served yet",
        ),
        ('{"messages": [{"role": "user"}]}', "messages[0].content is missing"),
        ('{"modalities": ["audio"]}', 'modalities: only ["text"] is served yet'),
        ('{"store": true}', "store: only false is served yet"),
        ("[]", "the body is a list; it must be an object"),
        ("{}", "messages is missing"),
        ('{"messages": [', "JSON is malformed: it is truncated"),
        ('{"model": "\udcff"}', "JSON is malformed: it is not UTF-8"),
    ],
)
def test_mistakes_are_told_in_words(body: str, says: str) -> None:
    raw = body.encode(errors="surrogateescape")
    if raw[:2] == b'{"' and b"messages" not in raw:
        raw = raw[:-1] + b', "messages": []}'
    with pytest.raises(TwolaneError) as caught:
        parse_chat(raw)
    assert caught.value.message == says
