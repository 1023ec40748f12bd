"""An answer in the shape of /v1/completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twolane.router.doors.http.choice import Choice
from twolane.router.doors.http.completion_request import CompletionRequest
from twolane.router.doors.http.logprobs import Logprobs
from twolane.v1 import inference_pb2


class Completion(Choice):
    """A chunk is as the whole: text, and what stands beside it."""

    id_prefix = "cmpl-"
    object_name = chunk_object_name = "text_completion"

    def __init__(
        self, asked: CompletionRequest, token_bytes: Callable[[int], bytes], index: int
    ) -> None:
        super().__init__(index, asked)
        self._logprobs = None if asked.logprobs is None else Logprobs(token_bytes)

    def chunk(self, response: inference_pb2.GenerateResponse) -> dict[str, Any] | None:
        if not (response.tokens or response.text or response.finish_reason):
            return None
        return self.whole(response)

    def whole(self, response: inference_pb2.GenerateResponse) -> dict[str, Any]:
        choice = self._entry(response)
        choice["text"] = response.text
        choice["logprobs"] = self._logprobs.of(response.tokens) if self._logprobs else None
        return choice
