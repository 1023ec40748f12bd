"""One answer as it grows: tokens in index order, their text, stop strings, and the part not yet
sent to the client.

    events of the workers ──> add ──> tokens (kept: a resume needs them)
                                └───> text ──> stop strings ──> unsent ──> take ──> one piece
"""

from __future__ import annotations

from collections.abc import Sequence

from twolane.router.requests.piece import Piece
from twolane.router.text.answer_text import AnswerText
from twolane.router.text.detokenizer import Detokenizer
from twolane.rpc.columns import GOES_ON, Logprobs
from twolane.v1 import sampling_pb2


class Answer:
    """Owned by one request. `take` empties the unsent part; tokens stay."""

    __slots__ = ("_logprobs", "_n_sent", "_skip_bytes", "_text", "tokens")

    def __init__(
        self, detokenizer: Detokenizer | None, stops: Sequence[str], min_tokens: int
    ) -> None:
        self.tokens: list[int] = []
        self._text = None if detokenizer is None else AnswerText(detokenizer, stops, min_tokens)
        self._n_sent = 0
        self._skip_bytes = 0  # of the following text, which the client has already
        self._logprobs: dict[int, Logprobs] = {}  # of unsent tokens, by index

    def add(
        self,
        token_id: int,
        finish_reason: sampling_pb2.FinishReason = GOES_ON,
        logprobs: Logprobs | None = None,
    ) -> bool:
        """Add the next token.

        Returns whether a stop string is complete, so that the answer ends with this token. The text
        of a token that ended the answer by its id is not part of the answer.
        """
        if logprobs is not None:
            self._logprobs[len(self.tokens)] = logprobs
        self.tokens.append(token_id)
        if self._text is None:
            return False
        return self._text.add(
            token_id,
            is_last=bool(finish_reason),
            is_stop=finish_reason == sampling_pb2.FINISH_REASON_STOP,
        )

    def skip(self, n_tokens: int, n_text_bytes: int) -> None:
        """Do not send the first `n_tokens`, which are here, and the first `n_text_bytes` of UTF-8
        text: the client has them. Call it before the first `take`."""
        assert n_tokens <= len(self.tokens)
        self._n_sent, self._skip_bytes = n_tokens, n_text_bytes
        for index in [index for index in self._logprobs if index < n_tokens]:
            del self._logprobs[index]

    def end(self) -> None:
        """No more tokens follow: held text becomes part of the answer."""
        if self._text is not None:
            self._text.end()

    def take(self) -> Piece | None:
        """Take everything unsent, as one piece; None if there is nothing."""
        text = self._take_text()
        first, self._n_sent = self._n_sent, len(self.tokens)
        if first == self._n_sent and not text:
            return None
        if not self._logprobs:
            return Piece(first, self.tokens[first:], text)
        logprobs, self._logprobs = self._logprobs, {}
        return Piece(first, self.tokens[first:], text, logprobs)

    def _take_text(self) -> str:
        text = "" if self._text is None else self._text.take()
        if self._skip_bytes and text:
            raw = text.encode()
            skipped, self._skip_bytes = self._skip_bytes, max(0, self._skip_bytes - len(raw))
            text = raw[skipped:].decode(errors="replace")
        return text
