"""Converts `SamplingParams` to its message and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from twolane.params import SamplingParams
from twolane.v1 import sampling_pb2

_OPTIONAL = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed",
    "top_logprobs",
)  # fmt: skip
_PLAIN = ("min_tokens", "presence_penalty", "frequency_penalty", "ignore_eos")
_MANY = ("stop_token_ids", "stop", "logit_bias")


def params_to_proto(params: SamplingParams) -> sampling_pb2.SamplingParams:
    """The complete message: only fields that are None are left to the model's defaults."""
    return _message(params, _OPTIONAL + _PLAIN)


def given_to_proto(given: Mapping[str, Any]) -> sampling_pb2.SamplingParams:
    """A message with only the `given` fields of `SamplingParams`, by name. The others are left to
    the model's defaults.

    Raises `InvalidParameterError` naming the field that is out of its bound.
    """
    return _message(SamplingParams(**given), given.keys() - {*_MANY})


def _message(params: SamplingParams, names: Iterable[str]) -> sampling_pb2.SamplingParams:
    message = sampling_pb2.SamplingParams(
        stop_token_ids=params.stop_token_ids,
        stop=params.stop,
        logit_bias=params.logit_bias,
    )
    for name in names:
        value = getattr(params, name)
        if value is not None:
            setattr(message, name, value)
    return message


def params_from_proto(message: sampling_pb2.SamplingParams) -> SamplingParams:
    """The `SamplingParams` of a message. Unset fields get the defaults of `SamplingParams`.

    Raises `InvalidParameterError` naming the field that is out of its bound.
    """
    given = {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    given |= {name: getattr(message, name) for name in _PLAIN}
    return SamplingParams(
        **given,
        stop_token_ids=tuple(message.stop_token_ids),
        stop=tuple(message.stop),
        logit_bias=dict(message.logit_bias),
    )
