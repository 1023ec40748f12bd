"""How the next token is chosen: `SamplingParams`, shared by clients, router and engine.

A value here is always valid: the constructor checks every field and raises `InvalidParameterError`
naming the field, the value and the bound. Limits that depend on a model or a deployment (context
length, vocabulary, the operator's caps) are the door's to check.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from twolane.errors import InvalidParameterError

MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
NO_BIAS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling options, with the names and meanings of vLLM and Hugging Face.

    `temperature` 0 is greedy; then `top_k`, `top_p`, `min_p` and `seed` change nothing.
    `top_k` 0 keeps the whole vocabulary. Penalties see prompt and output as in vLLM:
    `repetition_penalty` both, `presence_penalty` and `frequency_penalty` the output alone.
    `min_tokens` bans every stop token (end-of-sequence ids too) until that many were generated.
    `top_logprobs` None asks for no log-probabilities, 0 for the chosen token's alone, n > 0 for
    the n likeliest besides. Log-probabilities are those of the model's raw logits in float32,
    before bias, penalties and temperature (vLLM's `raw_logprobs`).
    `seed` None lets the door draw one.
    """

    max_tokens: int = 128
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
        _at_least("max_tokens", self.max_tokens, 1)
        _within("min_tokens", self.min_tokens, 0, self.max_tokens)
        _within("temperature", self.temperature, 0.0, 100.0)
        _at_least("top_k", self.top_k, 0)
        _above_zero_to_one("top_p", self.top_p)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("repetition_penalty", self.repetition_penalty, 1e-3, 1e3)
        _within("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _within("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        if self.seed is not None:
            _within("seed", self.seed, 0, 2**63 - 1)
        if self.top_logprobs is not None:
            _within("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
        _within("len(stop)", len(self.stop), 0, MAX_STOP_STRINGS)
        for text in self.stop:
            _within("len(stop string)", len(text), 1, MAX_STOP_STRING_CHARS)
        _within("len(stop_token_ids)", len(self.stop_token_ids), 0, MAX_STOP_TOKEN_IDS)
        for token in self.stop_token_ids:
            _at_least("stop_token_ids", token, 0)
        _within("len(logit_bias)", len(self.logit_bias), 0, MAX_LOGIT_BIAS)
        for token, bias in self.logit_bias.items():
            _at_least("logit_bias token", token, 0)
            _within(f"logit_bias[{token}]", bias, -1e4, 1e4)
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


def _at_least(name: str, value: float, low: float) -> None:
    if not value >= low:
        raise InvalidParameterError(name, value, f"at least {low}")


def _within(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidParameterError(name, value, f"{low} to {high}")


def _above_zero_to_one(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise InvalidParameterError(name, value, "above 0, up to 1")
