"""Small tokenizers of the six usual kinds, in model directories, and texts that are hard for them.

Byte-level (Llama 3, Qwen, GPT-2): every token is a string of bytes. With byte fallback (Llama 2,
Mistral, Gemma): tokens are text, and what no token has is spelled in bytes, <0x00> to <0xFF>.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

BYTE_LEVEL = ("llama3", "qwen", "gpt2")
BYTE_FALLBACK = ("llama2", "mistral", "gemma")
KINDS = BYTE_LEVEL + BYTE_FALLBACK
VOCAB = 900
CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 2024, isn't it? 1,234.56 dollars; late!",
    "Der schnelle braune Fuchs springt über den faulen Hund. Größe, Straße, Äpfel, naïve café.",
    "Once upon a time there was a little girl who lived in a village near the forest. " * 3,
    "   leading spaces   and   runs  of   spaces\n\n\n",
    "def f(x):\n    return x ** 2  # comment\n\n\tif x:\n\t\tpass\n{\"a\": [1, 2, 3]}",
    "Быстрая коричневая лиса прыгает через ленивую собаку. Привет, мир!",
    "素早い茶色の狐がのろまな犬を飛び越える。こんにちは世界。東京都",
    "敏捷的棕色狐狸跳过了懒狗。你好，世界！中文分词",
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다. 안녕하세요 세계",
    "الثعلب البني السريع يقفز فوق الكلب الكسول. مرحبا بالعالم",
    "तेज भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। नमस्ते दुनिया",
    "สุนัขจิ้งจอกสีน้ำตาล สวัสดีชาวโลก",
] * 4  # fmt: skip
N_LATIN = 5  # of these lines: what the vocabularies with byte fallback are made of
_EMOJI = (
    "😀",
    "🎉",
    "👩‍👩‍👧‍👦",
    "🏳️‍🌈",
    "👍🏽",
    "👋🏿",
    "🇩🇪🇯🇵",
    "❤️",
    "🫠",
    "𝄞",
    "𠮷",
    "e\u0301",
    "\u200d",
    "\ufe0f",
)
_SPACES = ("  ", "   ", "\n", "\n\n", "\t", " \n ", "\r\n")
_MARKS = (".", ",", "!", "?", "'s", "…", "<s>", "</s>", "<|im_end|>", "[INST]", "<0x41>", "▁",
          "\u00a0", "\ufffd")  # fmt: skip
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_tokenizer(directory: Path, kind: str, **config: Any) -> Tokenizer:
    """tokenizer.json and tokenizer_config.json (with `config` on top). Returns the tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer, facts = _byte_level(kind) if kind in BYTE_LEVEL else _byte_fallback(kind)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(facts | config))
    return tokenizer


def random_texts(n: int, seed: int = 0) -> list[str]:
    """Words of many languages, emoji, characters that no vocabulary has, runs of white space, and
    what looks like special tokens."""
    rng = random.Random(seed)
    words = " ".join(CORPUS).split(" ")

    def part() -> str:
        draw = rng.random()
        if draw < 0.45:
            return rng.choice(words)
        if draw < 0.65:
            return "".join(rng.choices(_EMOJI, k=rng.randint(1, 4)))
        if draw < 0.75:
            return "".join(_rare_character(rng) for _ in range(rng.randint(1, 5)))
        return rng.choice(_SPACES if draw < 0.85 else _MARKS)

    return [rng.choice(("", " ")).join(part() for _ in range(rng.randint(1, 9))) for _ in range(n)]


def _rare_character(rng: random.Random) -> str:
    first, end = rng.choice(
        ((0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x400, 0x4FF), (0x1F600, 0x1F650))
    )
    return chr(rng.randrange(first, end))


def _special(tokens: list[str]) -> list[AddedToken]:
    return [AddedToken(token, special=True, normalized=False) for token in tokens]


def _byte_level(kind: str) -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    if kind == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        pieces = _PIECES if kind == "llama3" else _PIECES.replace("{1,3}", "")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pieces), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    if kind == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if kind == "llama3":
        names = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
        tokenizer.add_special_tokens(_special(names))
        first = names[0]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, tokenizer.token_to_id(first))]
        )
        ends = {"bos_token": first, "eos_token": "<|eot_id|>"}
    elif kind == "qwen":
        tokenizer.add_special_tokens(_special(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]))
        plain = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in plain])
        ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    else:
        tokenizer.add_special_tokens(_special(["<|endoftext|>"]))
        ends = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", **ends}


def _byte_fallback(kind: str) -> tuple[Tokenizer, dict[str, Any]]:
    names = ["<unk>", "<s>", "</s>"]
    if kind == "gemma":
        names = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    vocab, merges = _sentence_pieces(names)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.add_special_tokens(_special(names))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind == "gemma":
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    elif kind == "mistral":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.add_special_tokens(_special(["[INST]", "[/INST]"]))
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        replace = normalizers.Replace(" ", "▁")
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    first, last = ("<bos>", "<eos>") if kind == "gemma" else ("<s>", "</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A", special_tokens=[(first, vocab[first])]
    )
    ends = {"bos_token": first, "eos_token": last, "unk_token": "<unk>"}
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", **ends}


def _sentence_pieces(names: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges as SentencePiece would have them: names, bytes, spaces, pieces."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    n_pieces = VOCAB - len(names) - 256
    trainer = trainers.BpeTrainer(
        vocab_size=n_pieces, special_tokens=["<unk>"], show_progress=False
    )
    trained.train_from_iterator(CORPUS[:N_LATIN], trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    of_bytes = [f"<0x{value:02X}>" for value in range(256)]
    spaces = ["▁▁", "▁▁▁", "▁▁▁▁"]
    vocab = {x: i for i, x in enumerate(dict.fromkeys([*names, *of_bytes, *spaces, *pieces]))}
    merges = [("▁", "▁"), ("▁▁", "▁"), ("▁▁", "▁▁"), *map(tuple, model["merges"])]
    known = [m for m in dict.fromkeys(merges) if m[0] in vocab and m[1] in vocab]
    return vocab, [m for m in known if m[0] + m[1] in vocab]
