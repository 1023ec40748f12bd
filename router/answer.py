"""One answer as it grows: tokens in index order, their text, stop strings, what the client has not
been sent yet.

    events of the workers ──> add ──> tokens (kept: a resume needs them)
                                └───> text ──> stop strings ──> unsent ──> take ──> one response
"""

from __future__ import annotations

from collections.abc import Sequence

from router.answer_text import AnswerText
from router.detokenizer import Detokenizer
from twolane.v1 import inference_pb2, sampling_pb2, worker_pb2


class Answer:
    """Owned by one request. `take` empties what is unsent; tokens stay."""

    __slots__ = ("_text", "_unsent", "tokens")

    def __init__(
        self, detokenizer: Detokenizer | None, stops: Sequence[str], min_tokens: int
    ) -> None:
        self.tokens: list[int] = []
        self._text = None if detokenizer is None else AnswerText(detokenizer, stops, min_tokens)
        self._unsent: list[inference_pb2.Token] = []

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
        if self._text is None:
            return False
        return self._text.add(
            event.token_id,
            is_last=bool(event.finish_reason),
            is_stop=event.finish_reason == sampling_pb2.FINISH_REASON_STOP,
        )

    def end(self) -> None:
        """No more tokens: text that was held back becomes part of the answer."""
        if self._text is not None:
            self._text.end()

    def take(self) -> inference_pb2.GenerateResponse | None:
        """Everything that waits, as one response; None if nothing does."""
        text = "" if self._text is None else self._text.take()
        if not self._unsent and not text:
            return None
        response = inference_pb2.GenerateResponse(tokens=self._unsent, text=text)
        self._unsent.clear()
        return response
