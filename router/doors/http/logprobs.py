"""Log-probabilities in the two shapes that OpenAI's clients know."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from typing import Any

from twolane.v1 import inference_pb2


class Logprobs:
    """Those of completions, of one answer. `token_bytes` spells a token; tokens of the same text
    share one entry of the likeliest, as they do there."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_chars = 0

    def of(self, tokens: Iterable[inference_pb2.Token]) -> dict[str, list[Any]]:
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
        for token in tokens:
            text = self._decoder.decode(self._token_bytes(token.token_id))
            likeliest = {
                self._alone(top.token_id): top.logprob
                for top in token.top_logprobs
                if top.token_id != token.token_id
            }
            shown["tokens"].append(text)
            shown["token_logprobs"].append(token.logprob)
            shown["top_logprobs"].append({**likeliest, text: token.logprob})
            shown["text_offset"].append(self._n_chars)
            self._n_chars += len(text)
        return shown

    def _alone(self, token_id: int) -> str:
        """The text of a token that was not chosen; part of a character is U+FFFD."""
        return self._token_bytes(token_id).decode(errors="replace")


def chat_logprobs(
    tokens: Iterable[inference_pb2.Token], token_bytes: Callable[[int], bytes]
) -> list[dict[str, Any]]:
    """Those of chat: an entry a token. The `bytes` add up to the answer's text; a `token` that is
    part of a character is U+FFFD."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        spelled = token_bytes(token_id)
        text = spelled.decode(errors="replace")
        return {"token": text, "logprob": logprob, "bytes": list(spelled)}

    return [
        {
            **entry(token.token_id, token.logprob),
            "top_logprobs": [entry(top.token_id, top.logprob) for top in token.top_logprobs],
        }
        for token in tokens
    ]
