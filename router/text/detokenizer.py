"""Token ids to text, one at a time, append-only, never a broken UTF-8 piece.

The last few ids stay in a window, since what a token adds depends on the token before it (leading
spaces) and a character may be spread over several tokens:

    window      [ context | … ids not yet clear of their neighbours ]
    its text    "…sent…|new|���"     up to 3 trailing U+FFFD may still become one character: held

Tokenizers with byte fallback (Llama 2, Mistral, Gemma) have a token for each byte, <0x00> to
<0xFF>. Their decoder takes a run of such tokens as a whole: one byte that is invalid, or still
missing, turns every character of the run into U+FFFD. So these bytes do not go through it: they are
decoded as UTF-8 here, and an invalid one is U+FFFD alone.

The pieces and `flush` concatenated are the decoding of the answer, except for invalid runs of byte
tokens, whose valid characters are kept. `tokenizers.decoders.DecodeStream` is not used: after such
a run it raises at every further token, it never gives an unfinished end, and it decodes endless
garbage again from its beginning at each token.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
MAX_WINDOW_TOKENS = 64  # reached only by endless garbage
CONTEXT_TOKENS = 4
MAX_HELD = 3  # a UTF-8 character has at most 4 bytes, so at most 3 of an unfinished one are here


class Decoding:
    """The decoder of one tokenizer; shared by all answers. Safe to use from threads."""

    __slots__ = ("_own_length", "_tokenizer", "byte_of", "special")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
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
        """Special tokens have none."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def own_length(self, token_id: int) -> int:
        """Characters of the token's text alone."""
        length = self._own_length.get(token_id)
        if length is None:
            length = self._own_length[token_id] = len(self.text([token_id]))
        return length


class Detokenizer:
    """One answer. `context` is the end of the prompt: a first word keeps its leading space."""

    __slots__ = ("_decoding", "_n_sent", "_utf8", "_window")

    def __init__(self, decoding: Decoding, context: Sequence[int] = ()) -> None:
        self._decoding = decoding
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        recent = context[-MAX_WINDOW_TOKENS:]
        self._window = [i for i in recent if i not in decoding.special][-CONTEXT_TOKENS:]
        text = decoding.text(self._window)
        if text.endswith(REPLACEMENT) and not decoding.byte_of:
            self._window, text = [], ""  # the prompt's half character is not the answer's
        self._n_sent = len(text)

    def add(self, token_id: int) -> str:
        """The text that is certain now and was not before; often a word, sometimes nothing."""
        decoding = self._decoding
        if token_id in decoding.special:
            return ""
        byte = decoding.byte_of.get(token_id)
        if byte is not None:
            held = self._flush_window()
            self._window, self._n_sent = [token_id], decoding.own_length(token_id)
            return held + self._utf8.decode(byte)
        broken = self._utf8.decode(b"", final=True) if decoding.byte_of else ""
        return broken + self._add_to_window(token_id)

    def flush(self) -> str:
        """The answer is over: the held text, as it is."""
        return self._flush_window() + self._utf8.decode(b"", final=True)

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
        """Keep the last token as context, if it has text of its own: a decoder that strips leading
        spaces would take the next token for the first."""
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
