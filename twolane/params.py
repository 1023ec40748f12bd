"""`SamplingParams`: how the next token is chosen. Clients, routers and engines share it.

A value here is always valid: the constructor checks every field and raises `InvalidParameterError`
naming the field, the value and its bound or type. The router checks limits that depend on a model
or a deployment (context length, vocabulary, the operator's caps).
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from twolane.errors import InvalidParameterError

MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_INT = 2**31 - 1  # the greatest int32 of the messages
NO_BIAS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling options, with the names and meanings of vLLM and Hugging Face.

    `max_tokens` None means as many as fit: the model's context less the prompt, within the router's
    bound. `min_tokens` may then be as high. `temperature` 0 is greedy; then `top_k`, `top_p`,
    `min_p` and `seed` change nothing. `top_k` 0 keeps the whole vocabulary. Penalties apply as in
    vLLM: `repetition_penalty` to the tokens of prompt and output, `presence_penalty` and
    `frequency_penalty` to those of the output only. `min_tokens` bans every stop token, including
    end-of-sequence ids, until that many tokens were generated. `top_logprobs` None returns no
    log-probabilities, 0 only the chosen token's, n > 0 also those of the n likeliest tokens.
    Log-probabilities are those of the model's raw logits in float32, before bias, penalties and
    temperature (vLLM's `raw_logprobs`). If `seed` is None, the router draws one. `stop` may be one
    string; `stop` and `stop_token_ids` may be any list or tuple.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: NO_BIAS)
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, MAX_INT)
        most = MAX_INT if self.max_tokens is None else self.max_tokens
        _integer("min_tokens", self.min_tokens, 0, most)
        _number("temperature", self.temperature, 0.0, 100.0)
        _integer("top_k", self.top_k, 0, MAX_INT)
        _number("top_p", self.top_p, 0.0, 1.0, but_not=0.0)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 1e-3, 1e3)
        _number("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _number("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        if self.seed is not None:
            _integer("seed", self.seed, 0, 2**63 - 1)
        if self.top_logprobs is not None:
            _integer("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidParameterError("ignore_eos", self.ignore_eos, "True or False")
        self._check_stops()
        self._check_logit_bias()

    def _check_stops(self) -> None:
        stop: Any = self.stop  # a caller without a type checker may pass anything
        texts = (stop,) if isinstance(stop, str) else _as_tuple("stop", stop)
        _integer("len(stop)", len(texts), 0, MAX_STOP_STRINGS)
        for text in texts:
            check_text("stop", text)
            _integer("len(stop string)", len(text), 1, MAX_STOP_STRING_CHARS)
        tokens = _as_tuple("stop_token_ids", self.stop_token_ids)
        _integer("len(stop_token_ids)", len(tokens), 0, MAX_STOP_TOKEN_IDS)
        for token in tokens:
            _integer("stop_token_ids", token, 0, MAX_INT)
        object.__setattr__(self, "stop", texts)
        object.__setattr__(self, "stop_token_ids", tokens)

    def _check_logit_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidParameterError("logit_bias", self.logit_bias, "token ids with their bias")
        _integer("len(logit_bias)", len(self.logit_bias), 0, MAX_LOGIT_BIAS)
        for token, bias in self.logit_bias.items():
            _integer("logit_bias token", token, 0, MAX_INT)
            _number(f"logit_bias[{token}]", bias, -1e4, 1e4)
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


def check_text(name: str, value: object, *, bound: str = "text") -> None:
    """Raise `InvalidParameterError` unless `value` is a string that UTF-8 can encode."""
    if not isinstance(value, str):
        raise InvalidParameterError(name, value, bound)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        wrong = value[error.start : error.end]
        bound = "text that UTF-8 can encode, without lone surrogates"
        raise InvalidParameterError(name, wrong, bound) from None


def is_integer(value: object) -> bool:
    """Whether `value` is an integer, numpy's included; a bool is not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether `value` is a number, integers included; a bool is not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _integer(name: str, value: Any, low: int, high: int) -> None:
    if not is_integer(value):
        raise InvalidParameterError(name, value, "an integer")
    if not low <= value <= high:
        bound = f"at least {low}" if high == MAX_INT and value < low else f"{low} to {high}"
        raise InvalidParameterError(name, value, bound)


def _number(
    name: str, value: Any, low: float, high: float, *, but_not: float | None = None
) -> None:
    if not is_number(value):
        raise InvalidParameterError(name, value, "a number")
    if not low <= value <= high or value == but_not:  # a NaN is in no range
        bound = f"{low} to {high}" if but_not is None else f"above {low}, up to {high}"
        raise InvalidParameterError(name, value, bound)


def _as_tuple(name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, Iterable):
        raise InvalidParameterError(name, value, "a list")
    return tuple(value)
