"""Log-probabilities in the two shapes that OpenAI's clients know."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from twolane.router.requests.piece import Piece
from twolane.rpc.columns import Top

_UNKNOWN: tuple[float, Top] = (0.0, ())


class Logprobs:
    """Those of completions, of one answer. `token_bytes` spells a token; tokens of the same text
    share one entry of the likeliest, as they do there."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_chars = 0

    def of(self, piece: Piece) -> dict[str, list[Any]]:
        """The next tokens of the answer, one entry in each list for each.

        The texts add up to the answer's, and `text_offset` counts their characters: a character
        made of several tokens is the text of the last, the others have none. Only special tokens
        are named here and have no text in the answer.
        """
        shown: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for token_id, logprob, top in _tokens(piece):
            text = self._decoder.decode(self._token_bytes(token_id))
            likeliest = {
                self._alone(other_id): its_logprob
                for other_id, its_logprob in top
                if other_id != token_id
            }
            shown["tokens"].append(text)
            shown["token_logprobs"].append(logprob)
            shown["top_logprobs"].append({**likeliest, text: logprob})
            shown["text_offset"].append(self._n_chars)
            self._n_chars += len(text)
        return shown

    def skip(self, token_ids: Sequence[int]) -> None:
        """Skip tokens that were shown before."""
        for token_id in token_ids:
            self._n_chars += len(self._decoder.decode(self._token_bytes(token_id)))

    def _alone(self, token_id: int) -> str:
        """The text of a token that was not chosen; part of a character is U+FFFD."""
        return self._token_bytes(token_id).decode(errors="replace")


def chat_logprobs(piece: Piece, token_bytes: Callable[[int], bytes]) -> list[dict[str, Any]]:
    """Those of chat: an entry a token. The `bytes` add up to the answer's text; a `token` that is
    part of a character is U+FFFD."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        spelled = token_bytes(token_id)
        text = spelled.decode(errors="replace")
        return {"token": text, "logprob": logprob, "bytes": list(spelled)}

    return [
        {**entry(token_id, logprob), "top_logprobs": [entry(*each) for each in top]}
        for token_id, logprob, top in _tokens(piece)
    ]


def _tokens(piece: Piece) -> Iterator[tuple[int, float, Top]]:
    """Each with its log-probability and the likeliest ones'."""
    for index, token_id in enumerate(piece.token_ids, piece.first_index):
        yield token_id, *piece.logprobs.get(index, _UNKNOWN)
