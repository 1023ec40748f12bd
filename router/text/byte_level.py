"""Byte-level vocabularies (GPT-2, Llama 3, Qwen): each token is a string of bytes, and a text is
the UTF-8 of its tokens' bytes, whatever stands beside a token."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders


def _alphabet() -> dict[str, int]:
    """Their names write each byte as one printable character (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + at): byte for at, byte in enumerate(others)}


BYTE_LEVEL = _alphabet()  # the byte of each character


def spelled(name: str) -> bytes:
    """The bytes of a token by its name in the vocabulary; empty if the name spells none."""
    if all(char in BYTE_LEVEL for char in name):
        return bytes(BYTE_LEVEL[char] for char in name)
    return b""


class TextBytes(dict[int, bytes]):
    """The bytes that each token adds to a text; none for a special token and an unknown id. Grows
    to the size of the vocabulary. May be used from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.update((token_id, b"") for token_id, token in added.items() if token.special)

    def __missing__(self, token_id: int) -> bytes:
        name = self._tokenizer.id_to_token(token_id)
        if name is None:
            return b""  # not kept: there are more of them than tokens
        # A name that is not spelled, as an added token's may be, is text.
        known = self[token_id] = spelled(name) or name.encode()
        return known


def text_bytes(tokenizer: Tokenizer) -> TextBytes | None:
    """None for other vocabularies."""
    is_it = isinstance(tokenizer.decoder, decoders.ByteLevel)
    return TextBytes(tokenizer) if is_it else None
