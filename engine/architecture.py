"""A model's shape, read strictly from its config.json: what the layers need, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError, UnsupportedModelError
from engine.quantisation import stores_fp8
from engine.rope import Rope, read_rope

# Per family, as transformers has them: whose biases are fixed, and what an absent key means.
FAMILIES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The facts that decide a forward pass. Equal facts and weights give equal answers."""

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
    windows: tuple[int, ...]  # per layer: how many positions a query sees, itself included; 0: all
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_embeddings: bool
    max_position: int
    eos_token_ids: tuple[int, ...]
    stores_fp8: bool = False  # the checkpoint's layers have FP8 matrices, each with its scales

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.heads // self.kv_heads


def read_architecture(model_dir: Path) -> Architecture:
    """Parse `model_dir/config.json` (and the end-of-sequence ids of generation_config.json).

    Raises CheckpointError where a file or a field is missing or wrong, UnsupportedModelError where
    the model is sound but of another kind. Knows both spellings of the rotary options: that of
    transformers 5 (`rope_parameters`) and the older (`rope_theta`, `rope_scaling`).
    """
    raw = _read_json(model_dir / "config.json")
    names = raw.get("architectures") or []
    kind = names[0] if names else f"model_type {raw.get('model_type')}"
    family = FAMILIES.get(names[0] if names else "")
    if family is None:
        raise UnsupportedModelError(f"{kind} is not supported; {', '.join(FAMILIES)} are")
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"hidden_act {raw['hidden_act']} is not supported; silu is")
    heads, hidden = _size(raw, "num_attention_heads"), _size(raw, "hidden_size")
    kv_heads = _size(raw, "num_key_value_heads", heads)
    head_dim = _size(raw, "head_dim", 128 if family == "qwen3" else hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise CheckpointError(f"{heads} heads of {head_dim} do not group over {kv_heads} kv heads")
    attention_bias = bool(raw.get("attention_bias", False)) and family in ("llama", "qwen3")
    max_position = _size(raw, "max_position_embeddings")
    return Architecture(
        family=family,
        vocab_size=_size(raw, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_size(raw, "intermediate_size"),
        layers=_size(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=_number(raw, "rms_norm_eps", 1e-6),
        rope=read_rope(raw, head_dim, max_position),
        windows=_windows(raw, family),
        qkv_bias=attention_bias or family == "qwen2",
        out_bias=attention_bias,
        mlp_bias=family == "llama" and bool(raw.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        max_position=max_position,
        eos_token_ids=_eos_token_ids(raw, model_dir),
        stores_fp8=stores_fp8(raw),
    )


def _windows(raw: Mapping[str, Any], family: str) -> tuple[int, ...]:
    """Mistral: one for all layers (absent means 4,096). Qwen: by `layer_types`, if at all."""
    layers = _size(raw, "num_hidden_layers")
    if family == "llama":
        return (0,) * layers
    window = raw.get("sliding_window", 4096)
    if family == "mistral":
        return (window or 0,) * layers
    if not raw.get("use_sliding_window", False) or not window:
        return (0,) * layers
    types = raw.get("layer_types")
    if types is None:
        first = raw.get("max_window_layers", 28)
        types = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    strange = set(types) - {"full_attention", "sliding_attention"}
    if strange or len(types) != layers:
        raise CheckpointError(f"layer_types {types} does not describe {layers} layers")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)


def _eos_token_ids(raw: Mapping[str, Any], model_dir: Path) -> tuple[int, ...]:
    found: set[int] = set()
    sources = [raw]
    if (model_dir / "generation_config.json").exists():
        sources.append(_read_json(model_dir / "generation_config.json"))
    for source in sources:
        ids = source.get("eos_token_id")
        found.update([ids] if isinstance(ids, int) else ids or [])
    return tuple(sorted(found))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return content


def _size(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise CheckpointError(f"config.json: {key} is {value!r}; it must be a positive integer")
    return value


def _number(raw: Mapping[str, Any], key: str, default: float) -> float:
    value = raw.get(key, default)
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise CheckpointError(f"config.json: {key} is {value!r}; it must be a positive number")
    return float(value)
