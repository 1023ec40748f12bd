"""One answer of a call, as its clients see it: an entry of `choices`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from twolane.router.doors.http.request import Request
from twolane.v1 import inference_pb2, sampling_pb2

_FINISH_REASONS = {
    sampling_pb2.FINISH_REASON_UNSPECIFIED: None,
    sampling_pb2.FINISH_REASON_STOP: "stop",
    sampling_pb2.FINISH_REASON_LENGTH: "length",
}


class Choice(ABC):
    """Either `whole` once, or `chunk` for each response of the router in turn."""

    # what the call's whole answer is
    id_prefix: ClassVar[str]
    object_name: ClassVar[str]
    chunk_object_name: ClassVar[str]

    def __init__(self, index: int, asked: Request) -> None:
        self._index = index
        self._token_ids = bool(asked.return_token_ids)

    @abstractmethod
    def chunk(self, response: inference_pb2.GenerateResponse) -> dict[str, Any] | None:
        """What one response adds; None if nothing that this client would see."""

    @abstractmethod
    def whole(self, response: inference_pb2.GenerateResponse) -> dict[str, Any]:
        """All of an answer, put together in one response."""

    def _entry(self, response: inference_pb2.GenerateResponse) -> dict[str, Any]:
        """What choices of all kinds have."""
        choice: dict[str, Any] = {
            "index": self._index,
            "finish_reason": _FINISH_REASONS[response.finish_reason],
        }
        if self._token_ids:
            choice["token_ids"] = [token.token_id for token in response.tokens]
        return choice
