"""Converts token ids to text, one at a time, append-only, and never splits a UTF-8 character.

The last few ids stay in a window, because a token's text depends on the token before it (leading
spaces), and a character may be split over several tokens:

    window      [ context | … ids whose text may still change ]
    its text    "…sent…|new|���"     up to 3 trailing U+FFFD may still become one character: held

Byte-level tokenizers (GPT-2, Llama 3, Qwen) need none: their tokens' bytes are decoded as UTF-8 as
they come, in a tenth of the time.

Tokenizers with byte fallback (Llama 2, Mistral, Gemma) have a token for each byte, <0x00> to
<0xFF>. Their decoder decodes a run of such tokens as a whole: one invalid or missing byte turns
every character of the run into U+FFFD. So we do not use it for these bytes, but decode them as
UTF-8 here; only the invalid byte becomes U+FFFD.

All pieces and `flush` concatenated equal the tokenizer's decoding of the answer, except for invalid
runs of byte tokens, of which we keep the valid characters. `tokenizers.decoders.DecodeStream` is
not used: after one invalid byte it raises at every further token, it never returns an unfinished
end, and with endless garbage it decodes everything again at each token: 3,000 tokens <0xF0> took it
1.6 s of CPU, and this class 4 ms (tokenizers 0.23.3).
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tokenizers import Tokenizer

from twolane.router.text.byte_level import text_bytes

REPLACEMENT = "\ufffd"
MAX_WINDOW_TOKENS = 64  # reached only by endless garbage
CONTEXT_TOKENS = 4
MAX_HELD = 3  # a UTF-8 character has at most 4 bytes, so an unfinished one has at most 3


class Decoding:
    """The decoder of one tokenizer, shared by all answers. May be used from several threads."""

    __slots__ = ("_own_length", "_tokenizer", "byte_of", "special", "text_bytes")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.text_bytes = text_bytes(tokenizer)
        self._own_length: dict[int, int] = {}
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)
        self.byte_of: dict[int, bytes] = {}  # empty if the decoder has no byte tokens
        decoder = tokenizer.decoder
        if decoder is not None and decoder.decode(["a", "<0x41>"]) == "aA":
            for value in range(256):
                token_id = tokenizer.token_to_id(f"<0x{value:02X}>")
                if token_id is not None:
                    self.byte_of[token_id] = bytes([value])

    def text(self, token_ids: list[int]) -> str:
        """The decoded text. Special tokens have no text."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def own_length(self, token_id: int) -> int:
        """The number of characters of the token if decoded alone."""
        length = self._own_length.get(token_id)
        if length is None:
            length = self._own_length[token_id] = len(self.text([token_id]))
        return length


class Detokenizer:
    """Detokenizes one answer. `context` is the end of the prompt, so that the first word keeps its
    leading space."""

    __slots__ = ("_decoding", "_n_sent", "_part", "_window")

    def __init__(self, decoding: Decoding, context: Sequence[int] = ()) -> None:
        self._decoding = decoding
        self._part = b""  # of a character, whose other bytes are to come
        self._window: list[int] = []
        self._n_sent = 0
        if decoding.text_bytes is not None:
            return
        recent = context[-MAX_WINDOW_TOKENS:]
        self._window = [i for i in recent if i not in decoding.special][-CONTEXT_TOKENS:]
        text = decoding.text(self._window)
        if text.endswith(REPLACEMENT) and not decoding.byte_of:
            # An incomplete character of the prompt is not part of the answer.
            self._window, text = [], ""
        self._n_sent = len(text)

    def add(self, token_id: int) -> str:
        """Add a token, and return the text that has become certain: often a word, sometimes
        nothing."""
        decoding = self._decoding
        if decoding.text_bytes is not None:
            return self._decoded(decoding.text_bytes[token_id])
        if token_id in decoding.special:
            return ""
        byte = decoding.byte_of.get(token_id)
        if byte is not None:
            held = self._flush_window()
            self._window, self._n_sent = [token_id], decoding.own_length(token_id)
            return held + self._decoded(byte)
        broken = self._decoded(b"", is_last=True) if decoding.byte_of else ""
        return broken + self._add_to_window(token_id)

    def flush(self) -> str:
        """Return the held text as it is, at the end of the answer."""
        return self._flush_window() + self._decoded(b"", is_last=True)

    def _decoded(self, piece: bytes, *, is_last: bool = False) -> str:
        """As the library's incremental decoder, of which each answer would have an own one."""
        piece = self._part + piece
        text, n_bytes = codecs.utf_8_decode(piece, "replace", is_last)
        self._part = piece[n_bytes:]
        return text

    def _add_to_window(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decoding.text(self._window)
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
            self._n_sent = max(0, len(self._decoding.text(self._window)) - n_held)
        return piece

    def _slide(self, text: str) -> None:
        """Keep only the last token as context, if it has text: after a token without text, a
        decoder that strips leading spaces would strip the next token's."""
        length = self._decoding.own_length(self._window[-1])
        if length or len(self._window) > MAX_WINDOW_TOKENS:
            del self._window[:-1]
            self._n_sent = length
        else:
            self._n_sent = len(text)

    def _flush_window(self) -> str:
        text = self._decoding.text(self._window)
        piece, self._n_sent = text[self._n_sent :], len(text)
        return piece
