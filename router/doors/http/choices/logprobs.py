"""Log-probabilities in the two shapes that OpenAI's clients know."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any

from twolane.router.requests.piece import Piece
from twolane.rpc.columns import Top

_UNKNOWN: tuple[float, Top] = (0.0, ())


class Logprobs:
    """Those of completions, of one answer. `token_bytes` spells a token; tokens of the same text
    share one entry of the likeliest, as they do there."""

    __slots__ = ("_n_chars", "_part", "_token_bytes")

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._part = b""  # of a character, whose other bytes are to come
        self._n_chars = 0

    def of(self, piece: Piece) -> dict[str, list[Any]]:
        """The next tokens of the answer, one entry in each list for each.

        The texts add up to the answer's, and `text_offset` counts their characters: a character
        made of several tokens is the text of the last, the others have none. Only special tokens
        are named here and have no text in the answer.
        """
        texts, values, likeliest, offsets = [], [], [], []
        spelled, known = self._token_bytes, piece.logprobs
        for index, token_id in enumerate(piece.token_ids, piece.first_index):
            logprob, top = known.get(index, _UNKNOWN)
            text = self._text(token_id)
            by_text = {}
            for other_id, its_logprob in top:
                if other_id != token_id:  # of others, part of a character is U+FFFD
                    by_text[spelled(other_id).decode(errors="replace")] = its_logprob
            by_text[text] = logprob
            texts.append(text)
            values.append(logprob)
            likeliest.append(by_text)
            offsets.append(self._n_chars)
            self._n_chars += len(text)
        return {
            "tokens": texts,
            "token_logprobs": values,
            "top_logprobs": likeliest,
            "text_offset": offsets,
        }

    def skip(self, token_ids: Sequence[int]) -> None:
        """Skip tokens that were shown before."""
        for token_id in token_ids:
            self._n_chars += len(self._text(token_id))

    def _text(self, token_id: int) -> str:
        """The text of the next token of the answer."""
        spelled = self._part + self._token_bytes(token_id)
        text, n_bytes = codecs.utf_8_decode(spelled, "replace", False)
        self._part = spelled[n_bytes:]
        return text


def chat_logprobs(piece: Piece, token_bytes: Callable[[int], bytes]) -> list[dict[str, Any]]:
    """Those of chat: an entry a token. The `bytes` add up to the answer's text; a `token` that is
    part of a character is U+FFFD."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        spelled = token_bytes(token_id)
        text = spelled.decode(errors="replace")
        return {"token": text, "logprob": logprob, "bytes": list(spelled)}

    shown = []
    for index, token_id in enumerate(piece.token_ids, piece.first_index):
        logprob, top = piece.logprobs.get(index, _UNKNOWN)
        of_token = entry(token_id, logprob)
        of_token["top_logprobs"] = [entry(*each) for each in top]
        shown.append(of_token)
    return shown
