"""What OpenAI's and vLLM's clients may ask for and is not served: refused, each by its name."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from twolane.errors import InvalidRequestError, UnimplementedError
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
    "echo": True, "add_generation_prompt": False, "mm_processor_kwargs": {},
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
