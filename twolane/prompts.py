"""A prompt and its options, as the request that goes over the wire."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from twolane.errors import InvalidRequestError
from twolane.params import SamplingParams
from twolane.rpc.params import params_to_proto
from twolane.v1 import inference_pb2
from twolane.values import Message


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams`, as keywords of a call."""

    max_tokens: int
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

    `token_ids` and `messages` are the other forms of a prompt. `params` are sampling options as a
    value; single ones (`max_tokens=…`) override its fields. `model` may be left out where the
    cluster has one. `priority` -100 to 100, higher first. `request_id` is drawn if left out.
    After `timeout_s` the request is cancelled and `DeadlineError` raised.
    """

    token_ids: Sequence[int] | None
    messages: Sequence[Message] | None
    params: SamplingParams | None
    model: str
    priority: int
    request_id: str
    timeout_s: float | None


def sampling_of(options: RequestOptions) -> SamplingParams:
    """`params` (default: the defaults) with the single options on top.

    Raises `InvalidParameterError` for a value out of its bound, TypeError for an unknown name.
    """
    changes: dict[str, Any] = {
        name: value
        for name, value in options.items()
        if name not in RequestOptions.__annotations__ or name in SamplingOptions.__annotations__
    }
    if isinstance(changes.get("stop"), str):
        changes["stop"] = (changes["stop"],)
    for name in {"stop", "stop_token_ids"} & changes.keys():
        changes[name] = tuple(changes[name])
    return dataclasses.replace(options.get("params") or SamplingParams(), **changes)


def build_request(prompt: str | None, options: RequestOptions) -> inference_pb2.GenerateRequest:
    """Raises `InvalidRequestError` unless exactly one of the three forms of a prompt is given.

    A missing `request_id` is drawn here, so that the caller can cancel before the first answer.
    """
    token_ids, messages = options.get("token_ids"), options.get("messages")
    n_given = sum(form is not None for form in (prompt, token_ids, messages))
    if n_given != 1:
        raise InvalidRequestError(
            f"{n_given} of prompt, token_ids and messages are given; give exactly one",
            field="prompt",
        )
    request = inference_pb2.GenerateRequest()
    sampling = params_to_proto(sampling_of(options))
    try:
        request.request_id = options.get("request_id") or secrets.token_hex(8)
        request.model = options.get("model", "")
        request.priority = options.get("priority", 0)
        request.sampling.CopyFrom(sampling)
        if prompt is not None:
            request.text = prompt
        elif token_ids is not None:
            request.token_ids.SetInParent()  # an empty list is for the door to refuse
            request.token_ids.ids.extend(token_ids)
        elif messages is not None:
            request.chat.SetInParent()
            for message in messages:
                request.chat.messages.add(role=message["role"], content=message["content"])
    except (TypeError, ValueError) as error:  # not an int32, a lone surrogate, …
        raise InvalidRequestError(f"the request does not fit the wire: {error}") from error
    except KeyError as error:
        raise InvalidRequestError(f"a message lacks {error}", field="messages") from error
    return request
