"""An answer in the shape of /v1/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twolane.router.doors.http.choices.choice import Choice, to_json
from twolane.router.doors.http.choices.logprobs import Logprobs
from twolane.router.doors.http.completion_request import CompletionRequest
from twolane.router.requests.piece import Piece


class Completion(Choice):
    """A chunk is as the whole: text, and what stands beside it."""

    __slots__ = ("_before_text", "_logprobs")

    id_prefix = "cmpl-"
    object_name = chunk_object_name = "text_completion"

    def __init__(
        self, asked: CompletionRequest, token_bytes: Callable[[int], bytes], index: int
    ) -> None:
        super().__init__(index, asked)
        self._logprobs = None if asked.logprobs is None else Logprobs(token_bytes)
        self._before_text = b'{"index":%d,"finish_reason":null,"text":' % index

    def skip(self, token_ids: Sequence[int]) -> None:
        if self._logprobs is not None:
            self._logprobs.skip(token_ids)

    def chunk(self, piece: Piece) -> bytes | None:
        if not (piece.token_ids or piece.text or piece.finish_reason):
            return None
        if piece.finish_reason or self._token_ids:
            return to_json(self.whole(piece))
        logprobs = b"null" if self._logprobs is None else to_json(self._logprobs.of(piece))
        return b'%b%b,"logprobs":%b}' % (self._before_text, to_json(piece.text), logprobs)

    def whole(self, piece: Piece) -> dict[str, Any]:
        choice = self._entry(piece)
        choice["text"] = piece.text
        choice["logprobs"] = self._logprobs.of(piece) if self._logprobs else None
        return choice
