"""The fields of a request body besides the prompt, and their conversion for the router.

Names and meanings are OpenAI's; those below "ours" are vLLM's, except `timeout_s`. Unknown fields
are refused by name, and so are known ones that request something not served yet.
"""

from __future__ import annotations

import json
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
_WHERE = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_NAMED = re.compile(r"field `([^`]*)`")
_EXPECTED = re.compile(r"^Expected `([^`]*)`, got `([^`]*)`")
_ENUM = re.compile(r"^Invalid enum value ('.*?'|\S+)")
_KINDS = {
    "int": "an integer", "float": "a number", "str": "a string", "bool": "a boolean",
    "array": "a list", "object": "an object", "null": "null",
}  # fmt: skip
_FIRST_WORD = re.compile(r"(?:len\()?(\w*)")
# The first half of a surrogate pair without the other, unless the body ends there. Possessive:
# 16 MB of backslashes take 0.2 s.
_LONE_SURROGATE = re.compile(
    rb"(?:[^\\]++|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\(?!u[dD][89a-fA-F]).)*+"
    rb"(\\u[dD][89a-fA-F][0-9a-fA-F]{2})(?!(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z)",
    re.DOTALL,
)


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`include_usage`: a last event with the counts; `continuous_usage_stats`: counts in every
    event. `include_obfuscation` would pad events to equal lengths, which is not served."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request body. Types are checked here; `SamplingParams` and the router's limits check
    values."""

    # Known fields of which only null, or one value, is served: one plain answer. Any other value is
    # refused.
    plain: ClassVar[Mapping[str, Any]] = {}
    # The router's names of fields that have other names here.
    own_names: ClassVar[Mapping[str, str]] = {}
    # The bound of the answer's length if `max_tokens` is not set. None: the router's bound.
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
    # ignored, as they do not change an answer
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
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
        """The requests to the router, one for each answer. Raises as `parse` does."""

    @contextmanager
    def naming_fields(self, at: int = 0) -> Iterator[None]:
        """A block in which errors about answer `at` name fields as this request does."""
        try:
            yield
        except InvalidRequestError as error:
            error.field = self._own_name(error.field, at)
            raise

    def _own_name(self, field: str, at: int) -> str:
        """This request's name for a field of the router: `len(chat.messages)` is about `chat`,
        which may be `messages` here."""
        found = _FIRST_WORD.match(field)
        name = found[1] if found else field
        return self.own_names.get(name, name)

    def _to_router(self, **more: Any) -> inference_pb2.GenerateRequest:
        """The message without the prompt; `more` are sampling options that have other names
        here."""
        given = {name: getattr(self, name) for name in _SAMPLING} | more
        given = {name: value for name, value in given.items() if value is not None}
        if given.get("top_k") == -1:
            given["top_k"] = 0  # both mean the whole vocabulary
        if (seed := given.pop("seed", -1)) != -1:  # as in vLLM: any seed
            if not -(2**63) <= seed < 2**63:
                raise InvalidRequestError(
                    f"seed is {seed}; it must be {-(2**63)} to {2**63 - 1}", field="seed"
                )
            given["seed"] = seed % 2**63  # OpenAI's are signed, the router's are not
        return inference_pb2.GenerateRequest(sampling=given_to_proto(given), model=self.model or "")


RequestT = TypeVar("RequestT", bound=RequestBody)


def parse(decoder: msgspec.json.Decoder[RequestT], body: bytes) -> RequestT:
    """Parse a body. Raises `InvalidRequestError` or `UnimplementedError`, with the field if
    known."""
    try:
        request = decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if not isinstance(error, msgspec.ValidationError):
            _refuse_lone_surrogate(body)
        raise _refusal(str(error)) from error
    for name, only in request.plain.items():
        value = getattr(request, name)
        if value is not None and value != only:
            text = f"{name}: only {json.dumps(only)} is served yet"
            raise UnimplementedError(text, metadata={"field": name})
    if request.usage.include_obfuscation:
        name = "stream_options.include_obfuscation"
        raise UnimplementedError(f"{name}: only false is served yet", metadata={"field": name})
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError("stream_options need stream", field="stream_options")
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise InvalidParameterError("timeout_s", request.timeout_s, "more than 0")
    return request


def _refuse_lone_surrogate(body: bytes) -> None:
    """Of some, msgspec says that the body was truncated."""
    if found := _LONE_SURROGATE.match(body):
        half = found[1].decode()
        raise InvalidRequestError(
            f"JSON is malformed: {half} at byte {found.start(1)} is one half of a surrogate pair "
            f"without the other, and no character"
        )


def _refusal(text: str) -> TwolaneError:
    """The error for a text of msgspec, such as "Expected `int`, got `str` - at `$.seed`". Only
    fields that are not served yet must be null."""
    where, named = _WHERE.search(text), _NAMED.search(text)
    parts = [found[1] for found in (where, named) if found]
    field = short(".".join(part for part in parts if part))
    if text.startswith("Expected `null`"):
        return UnimplementedError(f"{field} is not served yet", metadata={"field": field})
    return InvalidRequestError(_in_words(text, field), field=field)


def _in_words(text: str, field: str) -> str:
    """That text of msgspec in the words of a request, as far as it is known."""
    where = field or "the body"
    if found := _EXPECTED.match(text):
        kinds = " or ".join(_KINDS.get(kind, kind) for kind in found[1].split(" | "))
        key = "a key of " if "`key` in" in text else ""
        return f"{key}{where} is {_KINDS.get(found[2], found[2])}; it must be {kinds}"
    if text.startswith("Object missing required field"):
        return f"{where} is missing"
    if text.startswith("Object contains unknown field"):
        return f"{where} is not a field of this request"
    if found := _ENUM.match(text):
        return f"{where} is {found[1]}, which is not served"
    if text == "Input data was truncated":
        return "JSON is malformed: it is truncated"
    if "codec can't decode" in text:
        return "JSON is malformed: it is not UTF-8"
    return text
