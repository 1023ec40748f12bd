"""Tokens one by one spell what the tokenizer makes of all of them."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from router.token_bytes import TokenBytes

PROMPT = "the fox"
TEXTS = [
    "hello world",
    " hello  world ",
    "你好, 世界!",
    "👍👍🏽 naïve café",
    "tabs\tand\nlines",
    "\ufffd and ▁",
    "",
]


def byte_level(decoder: decoders.Decoder) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoder
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=alphabet,
        special_tokens=["</s>", "<|é|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["hello world 世界 the fox " * 4], trainer)
    return tokenizer


def byte_fallback(*strip: decoders.Decoder) -> Tokenizer:
    """As SentencePiece's are converted: Llama 2 and Mistral with a `Strip`, Gemma without."""
    words = ["▁hello", "▁world", "▁the", "▁fox", "▁"]
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = []
    for word in words:
        pieces.extend(word)
        for end in range(2, len(word) + 1):
            pieces.append(word[:end])
            merges.append((word[: end - 1], word[end - 1]))
    vocab = {piece: at for at, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(
        models.BPE(vocab, list(dict.fromkeys(merges)), unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


KINDS = {
    "byte-level": lambda: byte_level(decoders.ByteLevel()),
    "byte-level in a sequence": lambda: byte_level(decoders.Sequence([decoders.ByteLevel()])),
    "Llama 2": lambda: byte_fallback(decoders.Strip(" ", 1, 0)),
    "Gemma": lambda: byte_fallback(),
}


@pytest.fixture(params=list(KINDS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return KINDS[request.param]()


def test_tokens_behind_a_prompt_add_up_to_their_text(tokenizer: Tokenizer) -> None:
    spell = TokenBytes(tokenizer).of
    before = tokenizer.encode(PROMPT).ids
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        together = tokenizer.decode(before + ids)
        expected = together.removeprefix(tokenizer.decode(before))
        assert b"".join(spell(token) for token in ids).decode() == expected


def test_a_word_keeps_its_leading_space(tokenizer: Tokenizer) -> None:
    spell = TokenBytes(tokenizer).of
    assert b" world" in [spell(token) for token in tokenizer.encode("hello world").ids]


def test_part_of_a_character_is_its_bytes(tokenizer: Tokenizer) -> None:
    spell = TokenBytes(tokenizer).of
    spelled = [spell(token) for token in tokenizer.encode("👍").ids]
    assert spelled[-4:] == [b"\xf0", b"\x9f", b"\x91", b"\x8d"]


def test_a_special_token_is_its_name_and_an_id_beyond_the_vocabulary_nothing(
    tokenizer: Tokenizer,
) -> None:
    spell = TokenBytes(tokenizer).of
    special = tokenizer.token_to_id("</s>")
    assert special is not None
    assert spell(special) == b"</s>"
    assert spell(tokenizer.get_vocab_size() + 7) == b""


def test_every_token_of_a_vocabulary_has_bytes(tokenizer: Tokenizer) -> None:
    for token in range(tokenizer.get_vocab_size()):
        assert TokenBytes(tokenizer).of(token)
