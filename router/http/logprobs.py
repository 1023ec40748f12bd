"""Log-probabilities in the shape of OpenAI's completions: by the text of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twolane.v1 import inference_pb2


class Logprobs:
    """Of one answer. `text_of` names a token; tokens of the same text share one entry of the
    likeliest, as they do there."""

    def __init__(self, text_of: Callable[[int], str]) -> None:
        self._text_of = text_of
        self._n_chars = 0

    def of(self, tokens: Iterable[inference_pb2.Token]) -> dict[str, list[Any]]:
        """The next tokens of the answer, one entry in each list for each. `text_offset` counts
        characters of the tokens' own texts, which can be more than the answer's: half a character
        is one here."""
        shown: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for token in tokens:
            text = self._text_of(token.token_id)
            likeliest = {self._text_of(top.token_id): top.logprob for top in token.top_logprobs}
            shown["tokens"].append(text)
            shown["token_logprobs"].append(token.logprob)
            shown["top_logprobs"].append({text: token.logprob, **likeliest})
            shown["text_offset"].append(self._n_chars)
            self._n_chars += len(text)
        return shown
