"""One answer as it grows: tokens in index order, their text, stop strings, what the client has not
been sent yet.

    events of the workers ──> add ──> tokens (kept: a resume needs them)
                                └───> text ──> stop strings ──> unsent ──> take ──> one response
"""

from __future__ import annotations

from collections.abc import Sequence

from router.detokenizer import Detokenizer
from router.stops import StopWatch
from twolane.v1 import inference_pb2, sampling_pb2, worker_pb2


class Answer:
    """Owned by one request. `take` empties what is unsent; tokens stay."""

    __slots__ = ("_detokenizer", "_min_tokens", "_stops", "_text", "_unsent", "tokens")

    def __init__(
        self, detokenizer: Detokenizer | None, stops: Sequence[str], min_tokens: int
    ) -> None:
        self.tokens: list[int] = []
        self._detokenizer = detokenizer
        self._stops = StopWatch(stops)
        self._min_tokens = min_tokens  # text of the first ones is not searched for stop strings
        self._unsent: list[inference_pb2.Token] = []
        self._text: list[str] = []

    def add(self, event: worker_pb2.TokenEvent) -> bool:
        """Take the next token; `event.index` is `len(tokens)`, the caller sees to that.

        Returns whether a stop string is complete: then the answer has ended with this token.
        The text of a token that ended the answer by its id is not part of the answer.
        """
        self.tokens.append(event.token_id)
        token = inference_pb2.Token(index=event.index, token_id=event.token_id)
        if event.HasField("logprob"):
            token.logprob = event.logprob
            token.top_logprobs.extend(event.top_logprobs)
        self._unsent.append(token)
        if self._detokenizer is None:
            return False
        if event.finish_reason == sampling_pb2.FINISH_REASON_STOP:
            self._text.append(self._detokenizer.flush())
            return False
        piece = self._detokenizer.add(event.token_id)
        if event.finish_reason:
            piece += self._detokenizer.flush()
        if not piece:
            return False
        if len(self.tokens) < self._min_tokens:
            self._text.append(piece)
            return False
        emitted, found = self._stops.feed(piece)
        self._text.append(emitted)
        return found

    def end(self) -> None:
        """No more tokens: text that was held back becomes part of the answer."""
        self._text.append(self._stops.flush())

    def take(self) -> inference_pb2.GenerateResponse | None:
        """Everything that waits, as one response; None if nothing does."""
        if not self._unsent:
            text = "".join(self._text)
            self._text.clear()
            return inference_pb2.GenerateResponse(text=text) if text else None
        response = inference_pb2.GenerateResponse(tokens=self._unsent, text="".join(self._text))
        self._unsent.clear()
        self._text.clear()
        return response
