"""An answer in the shape of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twolane.router.doors.http.chat_request import ChatRequest
from twolane.router.doors.http.choice import Choice
from twolane.router.doors.http.logprobs import chat_logprobs
from twolane.v1 import inference_pb2


class ChatMessage(Choice):
    """The assistant's message. There is no chunk before there is a token: the role goes on the
    first one, which without log-probabilities, token ids and counts is the first that has text."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def __init__(self, asked: ChatRequest, token_bytes: Callable[[int], bytes], index: int) -> None:
        super().__init__(index, asked)
        self._token_bytes = token_bytes
        self._logprobs = bool(asked.logprobs)
        self._each_token = self._logprobs or self._token_ids or asked.usage.continuous_usage_stats
        self._has_role = False

    def chunk(self, response: inference_pb2.GenerateResponse) -> dict[str, Any] | None:
        text = response.text
        if not (text or response.finish_reason or (self._each_token and response.tokens)):
            return None
        delta = {"content": text} if text else {}
        if not self._has_role:
            self._has_role = True
            delta = {"role": "assistant", "content": text}
        choice = self._entry(response)
        choice["delta"] = delta
        return choice

    def whole(self, response: inference_pb2.GenerateResponse) -> dict[str, Any]:
        choice = self._entry(response)
        choice["message"] = {"role": "assistant", "content": response.text, "refusal": None}
        return choice

    def _entry(self, response: inference_pb2.GenerateResponse) -> dict[str, Any]:
        choice = super()._entry(response)
        choice["logprobs"] = None
        if self._logprobs:
            shown = chat_logprobs(response.tokens, self._token_bytes)
            choice["logprobs"] = {"content": shown, "refusal": None}
        return choice
