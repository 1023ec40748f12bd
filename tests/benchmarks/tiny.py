"""A model small enough for Triton's interpreter."""

import json
from pathlib import Path


def write_tiny_config(folder: Path) -> Path:
    """A directory with nothing but a configuration: random weights fit it."""
    facts = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(facts))
    return folder
