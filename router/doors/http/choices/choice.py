"""One answer of a call, as its clients see it: an entry of `choices`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from twolane.router.doors.http.request import RequestBody
from twolane.router.requests.piece import Piece
from twolane.v1 import sampling_pb2

_FINISH_REASONS = {
    sampling_pb2.FINISH_REASON_UNSPECIFIED: None,
    sampling_pb2.FINISH_REASON_STOP: "stop",
    sampling_pb2.FINISH_REASON_LENGTH: "length",
}
to_json = msgspec.json.Encoder().encode


class Choice(ABC):
    """Either `whole` once, or `chunk` for each piece of the answer in turn."""

    __slots__ = ("_index", "_token_ids")

    # what the call's whole answer is
    id_prefix: ClassVar[str]
    object_name: ClassVar[str]
    chunk_object_name: ClassVar[str]

    def __init__(self, index: int, asked: RequestBody) -> None:
        self._index = index
        self._token_ids = bool(asked.return_token_ids)

    @abstractmethod
    def skip(self, token_ids: Sequence[int]) -> None:
        """Skip the part of the answer that the client has: these tokens, which may be none."""

    @abstractmethod
    def chunk(self, piece: Piece) -> bytes | None:
        """What one piece adds, in JSON; None if nothing that this client would see."""

    @abstractmethod
    def whole(self, piece: Piece) -> dict[str, Any]:
        """Of a whole answer."""

    def _entry(self, piece: Piece) -> dict[str, Any]:
        """What choices of all kinds have."""
        choice: dict[str, Any] = {
            "index": self._index,
            "finish_reason": _FINISH_REASONS[piece.finish_reason],
        }
        if self._token_ids:
            choice["token_ids"] = piece.token_ids
        return choice
