"""An answer in the shape of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twolane.router.doors.http.chat_request import ChatRequest
from twolane.router.doors.http.choices.choice import Choice, to_json
from twolane.router.doors.http.choices.logprobs import chat_logprobs
from twolane.router.requests.piece import Piece


class ChatMessage(Choice):
    """The assistant's message. There is no chunk before there is a token: the role goes on the
    first one, which without log-probabilities, token ids and counts is the first that has text."""

    __slots__ = (
        "_before_text",
        "_each_token",
        "_has_role",
        "_has_text_alone",
        "_logprobs",
        "_token_bytes",
    )

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def __init__(self, asked: ChatRequest, token_bytes: Callable[[int], bytes], index: int) -> None:
        super().__init__(index, asked)
        self._token_bytes = token_bytes
        self._logprobs = bool(asked.logprobs)
        self._each_token = self._logprobs or self._token_ids or asked.usage.continuous_usage_stats
        self._has_role = False
        self._has_text_alone = not self._each_token
        self._before_text = (
            b'{"index":%d,"finish_reason":null,"logprobs":null,"delta":{"content":' % index
        )

    def skip(self, token_ids: Sequence[int]) -> None:
        self._has_role = True

    def chunk(self, piece: Piece) -> bytes | None:
        text = piece.text
        if not (text or piece.finish_reason or (self._each_token and piece.token_ids)):
            return None
        if self._has_text_alone and self._has_role and not piece.finish_reason:  # nearly every one
            return self._before_text + to_json(text) + b"}}"
        delta = {"content": text} if text else {}
        if not self._has_role:
            self._has_role = True
            delta = {"role": "assistant", "content": text}
        choice = self._entry(piece)
        choice["delta"] = delta
        return to_json(choice)

    def whole(self, piece: Piece) -> dict[str, Any]:
        choice = self._entry(piece)
        choice["message"] = {"role": "assistant", "content": piece.text, "refusal": None}
        return choice

    def _entry(self, piece: Piece) -> dict[str, Any]:
        choice = super()._entry(piece)
        choice["logprobs"] = None
        if self._logprobs:
            shown = chat_logprobs(piece, self._token_bytes)
            choice["logprobs"] = {"content": shown, "refusal": None}
        return choice
