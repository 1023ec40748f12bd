"""The request body of /v1/chat/completions: text messages, for one text answer."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from twolane.errors import InvalidRequestError
from twolane.router.doors.http.request import RequestBody, parse
from twolane.v1 import inference_pb2


class TextPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message. The model's chat template decides which roles are valid."""

    role: str
    content: str | list[TextPart]
    # not served yet; null in an answer that a client sends back
    name: None = None
    tool_calls: None = None
    tool_call_id: None = None
    function_call: None = None
    audio: None = None
    refusal: None = None
    annotations: None = None
    reasoning: None = None
    reasoning_content: None = None

    @property
    def text(self) -> str:
        """The content as text, each part on its own line, as in vLLM."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


class ChatRequest(RequestBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`logprobs` requests log-probabilities, `top_logprobs` also those of that many likeliest
    tokens. Without a bound the answer may be as long as fits; `max_tokens` is the older name of
    `max_completion_tokens`."""

    plain: ClassVar = {
        "n": 1,
        "modalities": ["text"],
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "none",
        "functions": [],
        "function_call": "none",
        "store": False,
    }
    own_names: ClassVar = {"chat": "messages", "prompt": "messages", "request_id": "x-request-id"}

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    safety_identifier: str | None = None  # ignored, like `user`
    # refused if they request more than one plain answer
    n: int | None = None
    modalities: list[str] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    store: bool | None = None
    # not served yet
    parallel_tool_calls: None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None
    verbosity: None = None
    reasoning_effort: None = None
    chat_template: None = None
    chat_template_kwargs: None = None
    documents: None = None
    continue_final_message: None = None

    def messages_to_router(self) -> list[inference_pb2.GenerateRequest]:
        most = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        likeliest = (self.top_logprobs or 0) if self.logprobs else None
        with self.naming_fields():
            message = self._to_router(max_tokens=most, top_logprobs=likeliest)
        message.chat.SetInParent()  # also if there are no messages
        for said in self.messages:
            message.chat.messages.add(role=said.role, content=said.text)
        return [message]

    def _own_name(self, field: str, at: int) -> str:
        name = super()._own_name(field, at)
        is_new = name == "max_tokens" and self.max_completion_tokens is not None
        return "max_completion_tokens" if is_new else name


_DECODER = msgspec.json.Decoder(ChatRequest)


def parse_chat(body: bytes) -> ChatRequest:
    """Parse a body. Raises as `parse` does."""
    request = parse(_DECODER, body)
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs", field="top_logprobs")
    bounds = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(bounds) > 1:
        text = "max_tokens and max_completion_tokens are two names for one bound, but they differ"
        raise InvalidRequestError(text, field="max_tokens")
    return request
