"""The bytes that single tokens add to an answer's text.

A token decoded alone can lose its leading space (SentencePiece's decoders strip the first one), and
part of a character comes out as U+FFFD. So a token is decoded after another one, and the bytes of
a part are read from the token's name in the vocabulary.
"""

from __future__ import annotations

import re

from tokenizers import Tokenizer

from twolane.router.text.detokenizer import REPLACEMENT

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """Byte-level vocabularies write each byte as one printable character (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + at): byte for at, byte in enumerate(others)}


_BYTE_LEVEL = _byte_level_alphabet()


class TokenBytes:
    """Immutable; may be used from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = tokenizer.encode("a", add_special_tokens=False).ids[-1:]
        self._before_text = self._decode(self._before)
        self._known: dict[int, bytes] = {}  # at most the vocabulary

    def of(self, token_id: int) -> bytes:
        """UTF-8, or part of a character. A special token is its name; an id beyond the vocabulary
        is nothing."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        text = self._decode([*self._before, token_id])
        if text.startswith(self._before_text):
            text = text[len(self._before_text) :]
        else:
            text = self._decode([token_id])
        return self._part(token_id) or text.encode() if REPLACEMENT in text else text.encode()

    def _part(self, token_id: int) -> bytes:
        """The bytes that the token's name spells; none if it is no such name."""
        name = self._tokenizer.id_to_token(token_id) or ""
        if byte := _BYTE_FALLBACK.fullmatch(name):
            return bytes([int(byte[1], 16)])
        if all(char in _BYTE_LEVEL for char in name):
            return bytes(_BYTE_LEVEL[char] for char in name)
        return b""

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text
