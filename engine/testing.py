"""Test doubles: small random models of every family, in Hugging Face format.

    write_random_model(tmp_path, "qwen3", seed=1)     what `load_engine` and a router serve

Created by transformers itself, so that it is a reference for what is read back. Its random
initialisation leaves biases zero and norms one, which would hide parts of a model: here all differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_CLASS_NAMES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
FAMILIES = tuple(_CLASS_NAMES)
EOS_TOKEN = 2
CHAT_TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
# Windows and rotary scaling take effect within short test prompts.
SLIDING_WINDOW = 128
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
_OF_FAMILY: Mapping[str, Mapping[str, Any]] = {
    "llama": {"rope_parameters": LLAMA3_ROPE, "head_dim": 16},
    "mistral": {"sliding_window": SLIDING_WINDOW, "head_dim": 16},
    "qwen2": {
        "use_sliding_window": True,
        "sliding_window": SLIDING_WINDOW,
        "max_window_layers": 1,
    },
    "qwen3": {"head_dim": 32},
}


def write_random_model(
    model_dir: Path,
    family: str,
    *,
    seed: int,
    layers: int = 2,
    hidden_size: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocab_size: int = 320,
    dtype: str = "float32",
    max_shard_bytes: int | None = None,
    **options: Any,
) -> Path:
    """Write config, weights, and a byte-level tokenizer with a chat template; returns `model_dir`.

    `options` are passed to the family's transformers configuration; `max_shard_bytes` splits the
    weights into shards. The same arguments write the same weights.
    """
    import transformers  # takes seconds, and tests import this module for its constants, too

    name = _CLASS_NAMES[family]
    config_class = getattr(transformers, f"{name}Config")
    model_class = getattr(transformers, f"{name}ForCausalLM")
    settings = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size + 32,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": family in ("qwen2", "qwen3"),
        "bos_token_id": 1,
        "eos_token_id": EOS_TOKEN,
        **_OF_FAMILY[family],
        **options,
    }
    model = model_class(config_class(**settings))
    _randomise(model, seed)
    model = model.to(getattr(torch, dtype))
    shards = {} if max_shard_bytes is None else {"max_shard_size": max_shard_bytes}
    model.save_pretrained(model_dir, **shards)
    _write_tokenizer(model_dir, vocab_size)
    return model_dir


def _randomise(model: torch.nn.Module, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=source)
            if "norm" in name:
                drawn = 1 + 0.3 * drawn
            elif parameter.dim() == 2:
                # Logits of a few units: answers vary over the vocabulary, without many near-ties.
                drawn *= 1.5 * parameter.shape[1] ** -0.5
            elif parameter.dim() == 1:
                drawn *= 0.5
            parameter.copy_(drawn)


def _write_tokenizer(model_dir: Path, vocab_size: int) -> None:
    """One token per byte, after the special ones; other ids up to vocab_size have no meaning."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    assert vocab_size >= 3 + 256, "a byte-level tokenizer needs 259 ids"
    special = ["<unk>", "<s>", "</s>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(special + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.save(str(model_dir / "tokenizer.json"))
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 1024,
    }
    (model_dir / "tokenizer_config.json").write_text(json.dumps(facts, indent=2))
