"""Text as it streams against the decoding of the whole, for the six usual kinds of tokenizers."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tokenizers import Tokenizer

from tests.router.tokenizer_kinds import (
    BYTE_FALLBACK,
    BYTE_LEVEL,
    KINDS,
    random_texts,
    write_tokenizer,
)
from twolane.router.text.codec import TextCodec
from twolane.router.text.detokenizer import MAX_WINDOW_TOKENS

PROMPTS = ["Once", "世界", "Hi 👍", " ", "a\n", "</s>" * 80]


@cache
def made(kind: str) -> tuple[TextCodec, Tokenizer]:
    with TemporaryDirectory() as directory:
        tokenizer = write_tokenizer(Path(directory), kind)
        codec = TextCodec.load(directory)
    assert codec is not None
    return codec, tokenizer


def byte_tokens(tokenizer: Tokenizer, values: bytes) -> list[int]:
    ids = [tokenizer.token_to_id(f"<0x{value:02X}>") for value in values]
    assert None not in ids
    return [token_id for token_id in ids if token_id is not None]


def streamed(codec: TextCodec, context: list[int], ids: list[int]) -> list[str]:
    detokenizer = codec.detokenizer(context)
    return [*(detokenizer.add(token_id) for token_id in ids), detokenizer.flush()]


def whole(tokenizer: Tokenizer, context: list[int], ids: list[int]) -> str:
    before: str = tokenizer.decode(context, skip_special_tokens=True)
    both: str = tokenizer.decode(context + ids, skip_special_tokens=True)
    assert both.startswith(before)
    return both[len(before) :]


@pytest.mark.parametrize("kind", KINDS)
def test_streamed_text_is_the_decoding_of_the_whole(kind: str) -> None:
    codec, tokenizer = made(kind)
    for n, text in enumerate(random_texts(2000)):
        context = codec.encode(PROMPTS[n % len(PROMPTS)])
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        pieces = streamed(codec, context, ids)
        assert "".join(pieces) == whole(tokenizer, context, ids), (text, ids)
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in pieces), (text, pieces)


@pytest.mark.parametrize("kind", BYTE_FALLBACK)
@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Once", "👍👍"),
        ("Once", "你好"),
        ("Once", "한국어"),
        ("Once", "👋🏽!"),
        ("Once", "👍\nNext"),
        ("Once", "1\n👍\n2"),
        ("Once", "✓✓ “quoted” — yes…\n"),
        ("世界", " hello"),
        ("世界", "hello"),
        ("Hi 👍", "hello"),
    ],
)
def test_characters_spelled_in_bytes_stay_whole(kind: str, prompt: str, answer: str) -> None:
    codec, tokenizer = made(kind)
    context, ids = codec.encode(prompt), tokenizer.encode(answer, add_special_tokens=False).ids
    text = "".join(streamed(codec, context, ids))
    assert text == whole(tokenizer, context, ids)
    assert text.strip() == answer.strip()


@pytest.mark.parametrize("kind", BYTE_FALLBACK)
def test_an_invalid_byte_costs_no_character_that_is_whole(kind: str) -> None:
    codec, tokenizer = made(kind)
    ids = byte_tokens(tokenizer, "你".encode() + b"\x80" + "好".encode())
    after = tokenizer.encode("the end", add_special_tokens=False).ids
    text = "".join(streamed(codec, codec.encode("Once"), ids + after))
    assert text.startswith("你\ufffd好")
    assert text.endswith("the end")


@pytest.mark.parametrize("kind", KINDS)
def test_an_unfinished_character_comes_out_when_the_answer_ends(kind: str) -> None:
    codec, tokenizer = made(kind)
    ids = tokenizer.encode("ok 🫠", add_special_tokens=False).ids[:-1]
    *pieces, last = streamed(codec, codec.encode("Once"), ids)
    assert "".join(pieces).strip() == "ok"
    assert last == "\ufffd"


@pytest.mark.parametrize("kind", BYTE_FALLBACK)
def test_a_special_token_between_the_bytes_of_a_character_is_passed_over(kind: str) -> None:
    codec, tokenizer = made(kind)
    first, *others = byte_tokens(tokenizer, "你".encode())
    special = tokenizer.encode("").ids
    assert "".join(streamed(codec, codec.encode("Once"), [first, *special, *others])) == "你"


@pytest.mark.parametrize("kind", BYTE_LEVEL)
def test_any_bytes_come_out_as_the_decoder_has_them(kind: str) -> None:
    codec, tokenizer = made(kind)
    rng = random.Random(1)
    for _ in range(300):
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randint(1, 60))]
        assert "".join(streamed(codec, [], ids)) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", BYTE_LEVEL)
def test_added_token_and_unknown_id_have_the_text_that_the_decoder_gives_them(kind: str) -> None:
    tokenizer = Tokenizer.from_str(made(kind)[1].to_str())
    tokenizer.add_tokens(["two words", "größe", "<tool>"])
    tokenizer.add_special_tokens(["<think hard>"])
    codec, n = TextCodec(tokenizer), tokenizer.get_vocab_size()
    rng = random.Random(2)
    for _ in range(300):
        ids = [n - 1 - rng.randrange(-3, 8) for _ in range(rng.randint(1, 9))]
        assert "".join(streamed(codec, [], ids)) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", BYTE_FALLBACK)
def test_random_bytes_are_decoded_as_they_come(kind: str) -> None:
    codec, tokenizer = made(kind)
    token_of = byte_tokens(tokenizer, bytes(range(256)))
    values = random.Random(1).randbytes(1000)
    detokenizer, text = codec.detokenizer(), ""
    for n, value in enumerate(values, start=1):
        text += detokenizer.add(token_of[value])
        expected = values[:n].decode(errors="replace")
        assert expected.startswith(text)
        assert len(expected) - len(text) <= 1, "at most one unfinished character is held"
    assert len(detokenizer._window) <= MAX_WINDOW_TOKENS
