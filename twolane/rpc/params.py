"""`SamplingParams` to its message and back. Unset fields take the value type's defaults."""

from __future__ import annotations

from twolane.params import SamplingParams
from twolane.v1 import sampling_pb2

_OPTIONAL = ("max_tokens", "temperature", "top_p", "repetition_penalty", "seed", "top_logprobs")
_PLAIN = (
    "min_tokens",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
)


def params_to_proto(params: SamplingParams) -> sampling_pb2.SamplingParams:
    """A message with every field set that `params` sets."""
    message = sampling_pb2.SamplingParams(
        stop_token_ids=params.stop_token_ids,
        stop=params.stop,
        logit_bias=params.logit_bias,
    )
    for name in _OPTIONAL + _PLAIN:
        value = getattr(params, name)
        if value is not None:
            setattr(message, name, value)
    return message


def params_from_proto(message: sampling_pb2.SamplingParams) -> SamplingParams:
    """Raises `InvalidParameterError` naming the field that is out of its bound."""
    given = {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    given |= {name: getattr(message, name) for name in _PLAIN}
    return SamplingParams(
        **given,
        stop_token_ids=tuple(message.stop_token_ids),
        stop=tuple(message.stop),
        logit_bias=dict(message.logit_bias),
    )
