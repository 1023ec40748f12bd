"""What every call for an answer may say beside its prompt, and the same for the router.

Names and meanings are OpenAI's; those below "ours" are vLLM's, but for `timeout_s`. A field that is
not here is refused by name, as is one that asks for what there is not yet.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import msgspec

from twolane.errors import (
    InvalidParameterError,
    InvalidRequestError,
    TwolaneError,
    UnimplementedError,
    short,
)
from twolane.rpc.params import given_to_proto
from twolane.v1 import inference_pb2

_SAMPLING = (
    "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "logit_bias", "seed", "stop", "stop_token_ids",
    "ignore_eos",
)  # fmt: skip
_WHERE = re.compile(r" - at `\$\.?([^`]*)`$")
_NAMED = re.compile(r"field `([^`]*)`")
_FIRST_WORD = re.compile(r"(?:len\()?(\w*)")


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`include_usage`: a last event with the counts; `continuous_usage_stats`: every event."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One body. Types are checked here, values by `SamplingParams` and the router's limits."""

    # Fields that are known and have one value, or null, that asks for nothing beyond one plain
    # answer; any other value is refused.
    plain: ClassVar[Mapping[str, Any]] = {}
    # The router's names of fields that are called otherwise here.
    own_names: ClassVar[Mapping[str, str]] = {}
    # As many as fit, up to so many, where `max_tokens` is not given. None: the router's bound.
    default_max_tokens: ClassVar[int | None] = None

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    user: str | None = None  # of no consequence here
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

    @abstractmethod
    def messages_to_router(self) -> list[inference_pb2.GenerateRequest]:
        """One for each answer that is wanted. Raises as `parse` does."""

    @contextmanager
    def naming_fields(self, at: int = 0) -> Iterator[None]:
        """Errors about answer `at` that come through here name the field as this request does."""
        try:
            yield
        except InvalidRequestError as error:
            error.field = self._own_name(error.field, at)
            raise

    def _own_name(self, field: str, at: int) -> str:
        """`len(chat.messages)` is about `chat`, which may be `messages` here."""
        found = _FIRST_WORD.match(field)
        name = found[1] if found else field
        return self.own_names.get(name, name)

    def _to_router(self, **more: Any) -> inference_pb2.GenerateRequest:
        """Everything but the prompt; `more` are sampling options that have no such name here."""
        given = {name: getattr(self, name) for name in _SAMPLING} | more
        given = {name: value for name, value in given.items() if value is not None}
        if given.get("top_k") == -1:
            given["top_k"] = 0  # both are "all"
        return inference_pb2.GenerateRequest(sampling=given_to_proto(given), model=self.model or "")


RequestT = TypeVar("RequestT", bound=Request)


def parse(decoder: msgspec.json.Decoder[RequestT], body: bytes) -> RequestT:
    """Raises `InvalidRequestError` or `UnimplementedError`, naming the field where there is one."""
    try:
        request = decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(str(error)) from error
    for name, only in request.plain.items():
        value = getattr(request, name)
        if value is not None and value != only:
            text = f"{name}: only {only!r} is served yet"
            raise UnimplementedError(text, metadata={"field": name})
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError("stream_options need stream", field="stream_options")
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise InvalidParameterError("timeout_s", request.timeout_s, "more than 0")
    return request


def _refusal(text: str) -> TwolaneError:
    """msgspec says where: "Expected `int`, got `str` - at `$.seed`". Only what is not served yet
    must be null."""
    where, named = _WHERE.search(text), _NAMED.search(text)
    parts = [found[1] for found in (where, named) if found]
    field = short(".".join(part for part in parts if part))
    if text.startswith("Expected `null`"):
        return UnimplementedError(f"{field} is not served yet", metadata={"field": field})
    return InvalidRequestError(text, field=field)
