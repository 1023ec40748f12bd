"""Builds one `MultiplexResponse`: plain tokens in columns, everything else in parts."""

from __future__ import annotations

from twolane.errors import TwolaneError
from twolane.router.requests.piece import Piece
from twolane.rpc.errors import to_status
from twolane.v1 import inference_pb2


class AnswerMessage:
    """False while it is empty. Clients read parts before columns, so after `add_piece` of a column
    nothing more of that answer may be added until `take`."""

    def __init__(self, *, window_tokens: int) -> None:
        self._clear()
        self._window_tokens = window_tokens  # 0 once it has been sent
        self._is_ending = False

    def _clear(self) -> None:
        self._parts: list[inference_pb2.AnswerPart] = []
        self._answers: list[int] = []
        self._first_indexes: list[int] = []
        self._counts: list[int] = []
        self._token_ids: list[int] = []
        self._texts: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._answers or self._parts or self._is_ending)

    @property
    def n_parts(self) -> int:
        return len(self._parts)

    def end(self) -> None:
        """Ask the client to close its side of the stream once its answers are over."""
        self._is_ending = True

    def add(self, answer: int, response: inference_pb2.GenerateResponse) -> None:
        self._parts.append(inference_pb2.AnswerPart(answer=answer, response=response))

    def add_piece(self, answer: int, piece: Piece) -> None:
        if piece.logprobs:
            self.add(answer, piece.to_response())
            return
        self._answers.append(answer)
        self._first_indexes.append(piece.first_index)
        self._counts.append(len(piece.token_ids))
        self._token_ids += piece.token_ids
        self._texts.append(piece.text)

    def fail(self, answer: int, error: TwolaneError) -> None:
        """Add the error that ends an answer."""
        status = to_status(error).SerializeToString()
        self._parts.append(inference_pb2.AnswerPart(answer=answer, status=status))

    def take(self) -> inference_pb2.MultiplexResponse:
        n = len(self._answers)
        is_one_each = n == len(self._token_ids) and self._counts.count(1) == n
        message = inference_pb2.MultiplexResponse(
            window_tokens=self._window_tokens,
            parts=self._parts,
            answers=self._answers,
            first_indexes=self._first_indexes,
            counts=() if is_one_each else self._counts,
            token_ids=self._token_ids,
            texts=self._texts,
            is_ending=self._is_ending,
        )
        self._window_tokens, self._is_ending = 0, False
        self._clear()
        return message
