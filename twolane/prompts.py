"""Builds the request message from a prompt and its options."""

from __future__ import annotations

import dataclasses
import difflib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict

from twolane.config import check_seconds
from twolane.errors import InvalidParameterError, InvalidRequestError
from twolane.params import MAX_INT, SamplingParams, check_text, is_integer
from twolane.rpc.channel_options import MAX_MESSAGE_BYTES
from twolane.rpc.params import given_to_proto, params_to_proto
from twolane.v1 import inference_pb2, sampling_pb2
from twolane.values import Message

CHAT_ROLES = ("system", "user", "assistant")
MESSAGE_KEYS = ("role", "content")
MAX_PRIORITY = 100


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams`, as keywords of a call."""

    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    stop_token_ids: Sequence[int]
    stop: str | Sequence[str]
    ignore_eos: bool
    top_logprobs: int | None


class RequestOptions(SamplingOptions, total=False):
    """Every keyword of `generate` and `stream`.

    Sampling options that are left out have the model's defaults (from its generation_config.json),
    if it has any, else those of `SamplingParams`.

    `token_ids` and `messages` are the other forms of a prompt. `params` sets all sampling options,
    so that no default of the model applies; single options (`max_tokens=…`) override its fields.
    `model` may be left out if the cluster serves only one. `priority` is -100 to 100, higher first.
    `request_id` is drawn at random if left out. After `timeout_s` the request is cancelled and
    `DeadlineError` raised.
    """

    token_ids: Sequence[int] | None
    messages: Sequence[Message] | None
    params: SamplingParams | None
    model: str
    priority: int
    request_id: str
    timeout_s: float | None


def sampling_of(options: RequestOptions) -> sampling_pb2.SamplingParams:
    """`params` overridden by the single options; without `params`, only those options.

    Raises `InvalidParameterError` for a value out of its bound.
    """
    names = SamplingOptions.__annotations__
    changes: dict[str, Any] = {name: value for name, value in options.items() if name in names}
    params = options.get("params")
    if not isinstance(params, SamplingParams | None):
        raise InvalidParameterError("params", params, "a SamplingParams")
    if params is None:
        return given_to_proto(changes)
    return params_to_proto(dataclasses.replace(params, **changes))


def build_request(prompt: str | None, options: RequestOptions) -> inference_pb2.GenerateRequest:
    """Build the message and check what a client can check; the router checks what the model allows.

    Raises `InvalidRequestError` unless exactly one of the three forms of a prompt is given, for an
    unknown name, a wrong type or value, and a request larger than a message may be. A missing
    `request_id` is drawn here, so that the caller can cancel before the first response.
    """
    _check_names(options)
    if options.get("timeout_s") is not None:
        check_seconds("timeout_s", options["timeout_s"])
    token_ids, messages = options.get("token_ids"), options.get("messages")
    n_given = sum(form is not None for form in (prompt, token_ids, messages))
    if n_given != 1:
        raise InvalidRequestError(
            f"{n_given} of prompt, token_ids and messages are given; give exactly one",
            field="prompt",
        )
    request = inference_pb2.GenerateRequest(
        request_id=_text_option(options, "request_id") or secrets.token_hex(8),
        model=_text_option(options, "model"),
        priority=_priority(options),
        sampling=sampling_of(options),
    )
    if prompt is not None:
        check_text("prompt", prompt, bound="text; a list of token ids goes into token_ids=")
        request.text = prompt
    elif token_ids is not None:
        request.token_ids.SetInParent()  # so that the router refuses an empty list
        request.token_ids.ids.extend(_token_ids(token_ids))
    elif messages is not None:
        request.chat.SetInParent()
        for message in _messages(messages):
            request.chat.messages.add(role=message["role"], content=message["content"])
    n_bytes = request.ByteSize()
    if n_bytes > MAX_MESSAGE_BYTES:
        raise InvalidRequestError(
            f"the request has {n_bytes:,} bytes; a message holds at most {MAX_MESSAGE_BYTES:,}",
            field="prompt",
            metadata={"bytes": str(n_bytes), "limit": str(MAX_MESSAGE_BYTES)},
        )
    return request


def _check_names(options: RequestOptions) -> None:
    known = RequestOptions.__annotations__
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise InvalidRequestError(f"there is no option {name}; {hint}", field=name)


def _text_option(options: RequestOptions, name: Literal["request_id", "model"]) -> str:
    text = options.get(name)
    if text is None:
        return ""
    check_text(name, text)
    return text


def _priority(options: RequestOptions) -> int:
    priority = options.get("priority", 0)
    if not is_integer(priority):
        raise InvalidParameterError("priority", priority, "an integer")
    if not abs(priority) <= MAX_PRIORITY:
        raise InvalidParameterError("priority", priority, f"{-MAX_PRIORITY} to {MAX_PRIORITY}")
    return priority


def _token_ids(given: object) -> list[int]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidParameterError("token_ids", given, "a list of integers")
    ids = list(given)
    for index, token in enumerate(ids):
        if not is_integer(token):
            raise InvalidParameterError(f"token_ids[{index}]", token, "an integer")
        if not 0 <= token <= MAX_INT:
            raise InvalidParameterError(f"token_ids[{index}]", token, f"0 to {MAX_INT}")
    return ids


def _messages(given: object) -> Iterator[Mapping[str, str]]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidParameterError("messages", given, "a list of messages with role and content")
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise InvalidParameterError(where, message, 'like {"role": "user", "content": "…"}')
        for name, value in message.items():
            if name not in MESSAGE_KEYS and value is not None:
                raise InvalidRequestError(
                    f"{where} has {name!r}, which is not served; a message has role and content",
                    field=f"{where}.{name}",
                )
        for name in MESSAGE_KEYS:
            if name not in message:
                raise InvalidRequestError(f"{where} lacks {name!r}", field=where)
            check_text(f"{where}.{name}", message[name])
        if message["role"] not in CHAT_ROLES:
            bound = f"one of {', '.join(CHAT_ROLES)}"
            raise InvalidParameterError(f"{where}.role", message["role"], bound)
        yield message
