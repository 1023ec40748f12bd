"""Tokens one by one spell what the tokenizer makes of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.router.tokenizer_kinds import BYTE_FALLBACK, KINDS, random_texts, write_tokenizer
from twolane.router.text.token_bytes import TokenBytes


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp(request.param)
    return write_tokenizer(directory, request.param)


def test_tokens_behind_a_prompt_add_up_to_their_text(tokenizer: Tokenizer) -> None:
    spell = TokenBytes(tokenizer).__getitem__
    before = tokenizer.encode("the fox", add_special_tokens=False).ids
    n_before = len(tokenizer.decode(before))
    for text in random_texts(300, seed=2):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        expected = tokenizer.decode(before + ids, skip_special_tokens=False)[n_before:]
        assert b"".join(spell(token) for token in ids).decode() == expected


def test_a_word_keeps_its_leading_space(tokenizer: Tokenizer) -> None:
    spell = TokenBytes(tokenizer).__getitem__
    assert b" the" in [spell(token) for token in tokenizer.encode("over the").ids]


def test_part_of_a_character_is_its_bytes(tokenizer: Tokenizer) -> None:
    spell = TokenBytes(tokenizer).__getitem__
    spelled = [spell(token) for token in tokenizer.encode("𠮷").ids]
    assert b"".join(spelled).endswith("𠮷".encode())
    assert b"\xa0" in spelled


def test_a_special_token_is_its_name_and_an_id_beyond_the_vocabulary_nothing(
    tokenizer: Tokenizer,
) -> None:
    spell = TokenBytes(tokenizer).__getitem__
    for token_id, token in tokenizer.get_added_tokens_decoder().items():
        assert spell(token_id) == token.content.encode()
    assert spell(tokenizer.get_vocab_size() + 7) == b""


def test_every_token_of_a_vocabulary_has_bytes(tokenizer: Tokenizer) -> None:
    spell = TokenBytes(tokenizer).__getitem__
    assert all(spell(token) for token in range(tokenizer.get_vocab_size()))


@pytest.mark.parametrize("kind", BYTE_FALLBACK)
def test_each_of_the_256_byte_tokens_is_its_byte(kind: str, tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path, kind)
    spell = TokenBytes(tokenizer).__getitem__
    for value in range(256):
        token_id = tokenizer.token_to_id(f"<0x{value:02X}>")
        assert token_id is not None
        assert spell(token_id) == bytes([value])
