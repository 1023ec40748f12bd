"""The request body of /v1/completions: one prompt or several."""

from __future__ import annotations

from typing import ClassVar, TypeGuard, TypeVar

import msgspec

from twolane.errors import InvalidParameterError, InvalidRequestError
from twolane.params import MAX_INT
from twolane.router.doors.http.request import RequestBody, parse
from twolane.v1 import inference_pb2

Prompt = str | list[int]
KindT = TypeVar("KindT")


class CompletionRequest(RequestBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`prompt` is a text, a list of token ids, or a list of either. `logprobs` is the number of
    likeliest tokens to return."""

    plain: ClassVar = {"n": 1, "best_of": 1, "echo": False, "suffix": ""}
    own_names: ClassVar = {
        "text": "prompt",
        "token_ids": "prompt",
        "top_logprobs": "logprobs",
        "request_id": "x-request-id",
    }

    default_max_tokens: ClassVar = 16  # OpenAI's default

    prompt: str | list[int | str | list[int]]
    logprobs: int | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, at least one. Raises `InvalidRequestError` if kinds are mixed."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if not given:
            return [[]]
        if _all(given, int):
            return [given]
        if _all(given, str):
            return [*given]
        if _all(given, list):
            return [*given]
        text = "prompt mixes kinds; it must be a text, token ids, or a list of either"
        raise InvalidRequestError(text, field="prompt")

    def messages_to_router(self) -> list[inference_pb2.GenerateRequest]:
        with self.naming_fields():
            common = self._to_router(top_logprobs=self.logprobs)
        messages = []
        for at, prompt in enumerate(self.prompts):
            message = inference_pb2.GenerateRequest()
            message.CopyFrom(common)
            with self.naming_fields(at):
                _set_prompt(message, prompt)
            messages.append(message)
        return messages

    def _own_name(self, field: str, at: int) -> str:
        name = super()._own_name(field, at)
        return f"prompt[{at}]" if name == "prompt" and len(self.prompts) > 1 else name


_DECODER = msgspec.json.Decoder(CompletionRequest)


def parse_completion(body: bytes, *, max_prompts: int) -> CompletionRequest:
    """Parse a body. Raises as `parse` does."""
    request = parse(_DECODER, body)
    n_prompts = len(request.prompts)
    if n_prompts > max_prompts:
        text = f"prompt is a list of {n_prompts} prompts; at most {max_prompts} go in one request"
        raise InvalidRequestError(text, field="prompt")
    return request


def _all(values: list[int | str | list[int]], kind: type[KindT]) -> TypeGuard[list[KindT]]:
    return {type(value) for value in values} == {kind}


def _set_prompt(message: inference_pb2.GenerateRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        message.text = prompt
        return
    for token in (min(prompt), max(prompt)) if prompt else ():
        if not 0 <= token <= MAX_INT:
            raise InvalidParameterError("prompt", token, "a token id")
    message.token_ids.SetInParent()  # also if there are no tokens
    message.token_ids.ids.extend(prompt)
