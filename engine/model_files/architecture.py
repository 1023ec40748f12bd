"""A model's shape, read strictly from its config.json: only what the layers need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twolane.engine.config_fields import (
    count_of,
    flag_of,
    names_of,
    number_of,
    read_config,
    refuse,
    size_of,
    token_ids_of,
)
from twolane.engine.errors import CheckpointError, UnsupportedModelError
from twolane.engine.model_files.quantisation import stores_fp8
from twolane.engine.model_files.rope import Rope, read_rope

# Families follow transformers: which biases are fixed, and what an absent key means.
FAMILIES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Everything that decides a forward pass. Equal architecture and weights give equal answers."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    windows: tuple[int, ...]  # per layer: positions a query sees, including its own; 0: all
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_embeddings: bool
    max_position: int
    eos_token_ids: tuple[int, ...]
    stores_fp8: bool = False  # whether the checkpoint's layers have FP8 matrices with scales

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.heads // self.kv_heads


def read_architecture(model_dir: Path) -> Architecture:
    """Parse `model_dir/config.json`, and the end-of-sequence ids of generation_config.json.

    Raises CheckpointError if a file or a field is missing or wrong, UnsupportedModelError if the
    model is valid but of another kind. Accepts both spellings of the rotary options: transformers
    5's (`rope_parameters`) and the older one (`rope_theta`, `rope_scaling`).
    """
    raw = read_config(model_dir / "config.json")
    family = _family(raw)
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"hidden_act {raw['hidden_act']} is not supported; silu is")
    heads, hidden = size_of(raw, "num_attention_heads"), size_of(raw, "hidden_size")
    kv_heads = size_of(raw, "num_key_value_heads", heads)
    head_dim = size_of(raw, "head_dim", 128 if family == "qwen3" else hidden // heads)
    if heads % kv_heads:
        raise CheckpointError(f"config.json: {heads} heads do not group over {kv_heads} kv heads")
    if head_dim % 2:
        raise CheckpointError(f"config.json: head_dim is {head_dim}; rotation needs an even one")
    attention_bias = flag_of(raw, "attention_bias") and family in ("llama", "qwen3")
    max_position, vocab_size = size_of(raw, "max_position_embeddings"), size_of(raw, "vocab_size")
    return Architecture(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=size_of(raw, "intermediate_size"),
        layers=size_of(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=number_of(raw, "rms_norm_eps", 1e-6),
        rope=read_rope(raw, max_position),
        windows=_windows(raw, family),
        qkv_bias=attention_bias or family == "qwen2",
        out_bias=attention_bias,
        mlp_bias=flag_of(raw, "mlp_bias") and family == "llama",
        qk_norm=family == "qwen3",
        tied_embeddings=flag_of(raw, "tie_word_embeddings"),
        max_position=max_position,
        eos_token_ids=_eos_token_ids(raw, model_dir, vocab_size),
        stores_fp8=stores_fp8(raw),
    )


def _family(raw: Mapping[str, Any]) -> str:
    names = names_of(raw, "architectures")
    supported = ", ".join(FAMILIES)
    if not names:
        raise UnsupportedModelError(
            f"config.json names no architectures (its model_type is {raw.get('model_type')}); it "
            f"must name one of {supported}"
        )
    if names[0] not in FAMILIES:
        raise UnsupportedModelError(f"{names[0]} is not supported; {supported} are")
    return FAMILIES[names[0]]


def _windows(raw: Mapping[str, Any], family: str) -> tuple[int, ...]:
    """Mistral: one window for all layers (absent means 4,096). Qwen: by `layer_types`, if enabled.
    Others have none. Any other use of `layer_types` is refused."""
    layers = size_of(raw, "num_hidden_layers")
    window = 0 if family == "llama" else count_of(raw, "sliding_window", 4096)
    if family.startswith("qwen") and not flag_of(raw, "use_sliding_window"):
        window = 0
    first = 0 if family == "mistral" else count_of(raw, "max_window_layers", 28)
    usual = [_SLIDING if window and i >= first else _FULL for i in range(layers)]
    types = names_of(raw, "layer_types") or usual
    if len(types) != layers or set(types) - {_SLIDING, _FULL}:
        refuse("layer_types", types, f"{layers} times {_FULL} or {_SLIDING}")
    if types != usual and not (window and family.startswith("qwen")):
        raise UnsupportedModelError(
            f"config.json: layer_types are {sorted(set(types))}, but sliding_window and the "
            f"family {family} imply {sorted(set(usual))}; only Qwen supports windows by layer"
        )
    return tuple(window if kind == _SLIDING else 0 for kind in types)


def _eos_token_ids(raw: Mapping[str, Any], model_dir: Path, vocab_size: int) -> tuple[int, ...]:
    """The ids in generation_config.json, as in transformers; those in config.json if it has
    none."""
    path = model_dir / "generation_config.json"
    generation = read_config(path) if path.exists() else {}
    ids = token_ids_of(generation, "eos_token_id", vocab_size, path.name)
    return ids or token_ids_of(raw, "eos_token_id", vocab_size, "config.json")
