"""The tokenizer: byte-level BPE trained on the corpus itself. Every text round-trips.

Digits are single tokens. Encoding puts `BEGIN` in front unless special tokens are switched off, as
Llama's tokenizers do; a rendered chat brings its own.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from twolane.deploy.bundled.corpus import documents
from twolane.deploy.bundled.markup import BEGIN, CHAT_TEMPLATE, END, PAD, SPECIAL_TOKENS

CONTEXT_TOKENS = 4096


def train_tokenizer(seed: str, vocab_size: int, n_documents: int = 20_000) -> Tokenizer:
    """A tokenizer of exactly `vocab_size` tokens; `SPECIAL_TOKENS` come first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(islice(documents(f"tokenizer:{seed}"), n_documents), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    assert tokenizer.get_vocab_size() == vocab_size
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, chat template included."""
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT_TOKENS,
        "padding_side": "left",
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")
