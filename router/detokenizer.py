"""Token ids to text, one at a time, append-only, never a broken UTF-8 piece.

The last few ids stay in a window, since what a token adds depends on the token before it (leading
spaces) and a character may be spread over several tokens:

    window      [ context | … ids not yet clear of their neighbours ]
    its text    "…sent…|new|���"     up to 3 trailing U+FFFD may still become one character: held

The pieces and `flush` concatenated are the decoding of the answer, apart from byte-fallback
decoders, which turn characters that were right into U+FFFD when an invalid byte follows them: what
has been sent stays sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
MAX_WINDOW_TOKENS = 64  # only endless garbage gets there
CONTEXT_TOKENS = 4
MAX_HELD = 3  # a UTF-8 character has at most 4 bytes, so at most 3 of an unfinished one are here


class Detokenizer:
    """One answer. `context` is the end of the prompt: a first word keeps its leading space."""

    __slots__ = ("_n_sent", "_tokenizer", "_window")

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._window = list(context[-CONTEXT_TOKENS:])
        text = self._text()
        if text.endswith(REPLACEMENT):
            self._window, text = [], ""
        self._n_sent = len(text)

    def add(self, token_id: int) -> str:
        """The text that is certain now and was not before; often a word, sometimes nothing."""
        self._window.append(token_id)
        text = self._text()
        if not text.endswith(REPLACEMENT):
            piece = text[self._n_sent :]
            self._slide(text)
            return piece
        end = len(text)
        while end > len(text) - MAX_HELD and end and text[end - 1] == REPLACEMENT:
            end -= 1
        piece = text[self._n_sent : end]
        self._n_sent = max(self._n_sent, end)
        if len(self._window) > MAX_WINDOW_TOKENS:
            n_held = len(text) - self._n_sent
            del self._window[: -2 * CONTEXT_TOKENS]
            self._n_sent = max(0, len(self._text()) - n_held)
        return piece

    def flush(self) -> str:
        """The answer is over: what was held back, as it is."""
        text = self._text()
        piece, self._n_sent = text[self._n_sent :], len(text)
        return piece

    def _slide(self, text: str) -> None:
        """Keep the last token as context, if it has text of its own: special tokens have none,
        and a decoder that strips leading spaces would take the next token for the first."""
        last = self._tokenizer.decode(self._window[-1:], skip_special_tokens=True)
        if last or len(self._window) > MAX_WINDOW_TOKENS:
            del self._window[:-1]
            self._n_sent = len(last)
        else:
            self._n_sent = len(text)

    def _text(self) -> str:
        text: str = self._tokenizer.decode(self._window, skip_special_tokens=True)
        return text
