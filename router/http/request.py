"""What a client may ask at /v1/completions, and the same as a message for the router.

Names and meanings are OpenAI's; those below "ours" are vLLM's, but for `timeout_s`. A field that is
not here is refused by name, as is one that asks for what there is not yet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from twolane.errors import InvalidParameterError, InvalidRequestError, UnimplementedError
from twolane.params import MAX_INT, check_text
from twolane.rpc.params import given_to_proto
from twolane.v1 import inference_pb2

DEFAULT_MAX_TOKENS = 16  # OpenAI's
Prompt = str | list[int | str | list[int]]

_SAMPLING = (
    "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop", "stop_token_ids",
    "ignore_eos",
)  # fmt: skip
_ONLY = {"n": 1, "best_of": 1, "echo": False, "suffix": ""}  # null goes, too
_WHERE = re.compile(r" - at `\$\.?([^`]*)`$")
_NAMED = re.compile(r"field `([^`]*)`")


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`include_usage`: a last event with the counts; `continuous_usage_stats`: every event."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One body. Types are checked here, values by `SamplingParams` and the router's limits."""

    prompt: Prompt
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    user: str | None = None  # of no consequence here
    # known, and refused if they ask for more than one plain answer
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    # ours
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    return_token_ids: bool | None = None
    timeout_s: float | None = None  # the deadline, counted from the request's arrival

    @property
    def usage(self) -> StreamOptions:
        return self.stream_options or StreamOptions()


_DECODER = msgspec.json.Decoder(CompletionRequest)


def parse_request(body: bytes) -> CompletionRequest:
    """Raises `InvalidRequestError` or `UnimplementedError`, naming the field where there is one."""
    try:
        request = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(str(error)) from error
    for name, only in _ONLY.items():
        value = getattr(request, name)
        if value not in (None, only):
            raise UnimplementedError(
                f"{name} is {value!r}; only {only!r} is served", metadata={"field": name}
            )
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError("stream_options need stream", field="stream_options")
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise InvalidParameterError("timeout_s", request.timeout_s, "more than 0")
    return request


def to_message(request: CompletionRequest) -> inference_pb2.GenerateRequest:
    """The same for `Router.generate`. Raises as `parse_request` does."""
    given: dict[str, Any] = {name: getattr(request, name) for name in _SAMPLING}
    given = {name: value for name, value in given.items() if value is not None}
    if request.top_k == -1:
        given["top_k"] = 0  # both are "all"
    if request.logprobs is not None:
        given["top_logprobs"] = request.logprobs
    message = inference_pb2.GenerateRequest(sampling=given_to_proto(given))
    if request.model:
        check_text("model", request.model)
        message.model = request.model
    _set_prompt(message, request.prompt)
    return message


def _set_prompt(message: inference_pb2.GenerateRequest, prompt: Prompt | list[int]) -> None:
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise UnimplementedError(
                f"prompt is a list of {len(prompt)} prompts; send one a request",
                metadata={"field": "prompt", "value": str(len(prompt)), "bound": "1"},
            )
        return _set_prompt(message, prompt[0])
    if isinstance(prompt, str):
        check_text("prompt", prompt)
        message.text = prompt
        return None
    message.token_ids.SetInParent()  # also if there are none
    message.token_ids.ids.extend(_token_ids(prompt))
    return None


def _token_ids(prompt: Sequence[Any]) -> list[int]:
    if not {type(token) for token in prompt} <= {int}:
        raise InvalidRequestError(
            "prompt mixes kinds; it must be a text, or a list of token ids", field="prompt"
        )
    for token in (min(prompt), max(prompt)) if prompt else ():
        if not 0 <= token <= MAX_INT:
            raise InvalidParameterError("prompt", token, "a token id")
    return list(prompt)


def _refusal(text: str) -> InvalidRequestError:
    """msgspec says where: "Expected `int`, got `str` - at `$.seed`"."""
    where, named = _WHERE.search(text), _NAMED.search(text)
    parts = [found[1] for found in (where, named) if found]
    return InvalidRequestError(text, field=".".join(part for part in parts if part))
