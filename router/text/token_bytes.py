"""The bytes that single tokens add to an answer's text.

A token decoded alone can lose its leading space (SentencePiece's decoders strip the first one), and
an incomplete character is decoded as U+FFFD. So a token is decoded after another one, and the bytes
of an incomplete character are read from the token's name in the vocabulary.
"""

from __future__ import annotations

import re

from tokenizers import Tokenizer

from twolane.router.text.byte_level import spelled
from twolane.router.text.detokenizer import REPLACEMENT

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes(dict[int, bytes]):
    """Each token's bytes: UTF-8, which may be part of a character. For a special token, its name;
    for an id beyond the vocabulary, empty. Grows to as many as the model has ids. May be used from
    several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._before: list[int] = tokenizer.encode("a", add_special_tokens=False).ids[-1:]
        self._before_text = self._decode(self._before)

    def __missing__(self, token_id: int) -> bytes:
        known = self[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        text = self._decode([*self._before, token_id])
        if text.startswith(self._before_text):
            text = text[len(self._before_text) :]
        else:
            text = self._decode([token_id])
        return self._part(token_id) or text.encode() if REPLACEMENT in text else text.encode()

    def _part(self, token_id: int) -> bytes:
        """The bytes that the token's name in the vocabulary stands for; empty if it stands for
        none."""
        name = self._tokenizer.id_to_token(token_id) or ""
        if byte := _BYTE_FALLBACK.fullmatch(name):
            return bytes([int(byte[1], 16)])
        return spelled(name)

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text
