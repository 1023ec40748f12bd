"""What config.json may say, and that each thing it may not is one typed error that names it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.engine.model_files.test_checkpoint import edit_config, load
from twolane.engine.errors import CheckpointError, UnsupportedModelError
from twolane.engine.model_files.architecture import read_architecture
from twolane.engine.testing import write_random_model

YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_random_model(tmp_path, "llama", seed=2, layers=1)


@pytest.mark.parametrize(
    ("changes", "kind", "complaint"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, UnsupportedModelError, "GemmaForCausalLM is not"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "gelu is not supported; silu is"),
        (
            {"architectures": []},
            UnsupportedModelError,
            r"\(its model_type is llama\); it must name one of LlamaForCausalLM",
        ),
        ({"architectures": "LlamaForCausalLM"}, CheckpointError, "must be a list of names"),
        ({"quantization_config": {"bits": 4}}, UnsupportedModelError, "names no quant_method"),
        (
            {"quantization_config": {"load_in_8bit": True}},
            UnsupportedModelError,
            "quantised by 'bitsandbytes' are not supported",
        ),
        ({"rope_scaling": "linear"}, CheckpointError, "rope_scaling is 'linear'; it must be an ob"),
        ({"rope_parameters": {"rope_theta": 0}}, CheckpointError, "rope_theta is 0; it must be a"),
        ({"rope_parameters": ..., "rope_theta": -1}, CheckpointError, "rope_theta is -1"),
        ({"rope_parameters": ..., "rope_theta": "1e6"}, CheckpointError, "rope_theta is '1e6'"),
        (
            {"rope_parameters": {**LLAMA3, "factor": "8"}},
            CheckpointError,
            "factor is '8'; it must be a positive number",
        ),
        (
            {"rope_parameters": {**LLAMA3, "low_freq_factor": 4.0}},
            CheckpointError,
            "low_freq_factor is 4.0; it must be less than high_freq_factor",
        ),
        ({"rope_parameters": {"full_attention": {}}}, UnsupportedModelError, "by kind of layer"),
        ({"head_dim": 15}, CheckpointError, "head_dim is 15; rotation needs an even one"),
        ({"tie_word_embeddings": "no"}, CheckpointError, "tie_word_embeddings is 'no'"),
        ({"attention_bias": 1}, CheckpointError, "attention_bias is 1; it must be true or false"),
        (
            {"layer_types": ["sliding_attention"]},
            UnsupportedModelError,
            "layer_types are .*sliding_attention.* only Qwen supports windows by layer",
        ),
        ({"layer_types": ["mamba"]}, CheckpointError, r"layer_types is \['mamba'\]"),
        ({"layer_types": "full_attention"}, CheckpointError, "must be a list of names"),
        (
            {"rope_parameters": YARN},
            UnsupportedModelError,
            "rope_type yarn is not supported; default and llama3 are",
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, UnsupportedModelError, "partial"),
        ({"rope_parameters": {"rope_type": "llama3"}}, CheckpointError, "lacks 'factor'"),
        ({"vocab_size": ...}, CheckpointError, "vocab_size is None"),
        ({"hidden_size": "64"}, CheckpointError, "hidden_size is '64'"),
        ({"num_hidden_layers": 0}, CheckpointError, "num_hidden_layers is 0"),
        ({"rms_norm_eps": -1}, CheckpointError, "rms_norm_eps is -1"),
        ({"num_key_value_heads": 3}, CheckpointError, "do not group"),
        ({"vocab_size": 400}, CheckpointError, r"config.json requires \[400, 64\]"),
        ({"num_hidden_layers": 2}, CheckpointError, "model.layers.1.* is missing"),
        ({"mlp_bias": True}, CheckpointError, "mlp.gate_proj.bias is missing"),
    ],
)
def test_configs_that_cannot_be_served_say_why(
    changes: dict[str, Any], kind: type[Exception], complaint: str, llama: Path
) -> None:
    edit_config(llama, **changes)
    with pytest.raises(kind, match=complaint):
        load(llama)


def test_qwen_layer_types_must_fit(tmp_path: Path) -> None:
    write_random_model(tmp_path, "qwen2", seed=2)
    edit_config(tmp_path, layer_types=["full_attention"])
    with pytest.raises(
        CheckpointError, match="it must be 2 times full_attention or sliding_attention"
    ):
        load(tmp_path)


def test_both_spellings_of_rotary_options_read_the_same(llama: Path) -> None:
    new = read_architecture(llama)
    options = json.loads((llama / "config.json").read_text())["rope_parameters"]
    theta = options.pop("rope_theta")
    edit_config(llama, rope_parameters=..., rope_theta=theta, rope_scaling=options)
    assert read_architecture(llama) == new
    options["type"] = options.pop("rope_type")
    edit_config(llama, rope_scaling=options)
    assert read_architecture(llama) == new


def test_absent_keys_mean_what_transformers_says(tmp_path: Path) -> None:
    facts = {
        "architectures": ["MistralForCausalLM"],
        "vocab_size": 8,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 99,
    }
    (tmp_path / "config.json").write_text(json.dumps(facts))
    arch = read_architecture(tmp_path)
    assert (arch.kv_heads, arch.head_dim, arch.norm_eps) == (4, 16, 1e-6)
    assert (arch.windows, arch.rope.theta) == ((4096, 4096), 10000.0)
    edit_config(tmp_path, sliding_window=None)
    assert read_architecture(tmp_path).windows == (0, 0)
    edit_config(tmp_path, architectures=["Qwen2ForCausalLM"], max_window_layers=1)
    assert read_architecture(tmp_path).windows == (0, 0)
    edit_config(tmp_path, use_sliding_window=True, sliding_window=50)
    assert read_architecture(tmp_path).windows == (0, 50)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": 9}, (9,)),
        ({"eos_token_id": [9, 2]}, (2, 9)),
        ({"temperature": 0.5}, (2, 7)),
        (None, (2, 7)),
    ],
)
def test_eos_ids_are_those_of_generation_config_where_it_has_any(
    generation: dict[str, Any] | None, expected: tuple[int, ...], llama: Path
) -> None:
    edit_config(llama, eos_token_id=[7, 2])
    path = llama / "generation_config.json"
    path.unlink(missing_ok=True)
    if generation is not None:
        path.write_text(json.dumps(generation))
    assert read_architecture(llama).eos_token_ids == expected


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("value", [-1, [2, 10**6], "2", True])
def test_an_eos_id_outside_the_vocabulary_is_refused(file: str, value: object, llama: Path) -> None:
    (llama / "generation_config.json").unlink(missing_ok=True)
    path = llama / file
    facts = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(facts | {"eos_token_id": value}))
    words = re.escape(f"{file}: eos_token_id is {value!r}; it must be token ids, 0 to")
    with pytest.raises(CheckpointError, match=words):
        read_architecture(llama)


@pytest.mark.parametrize("window", ["33", 16.0, -1, True])
@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_a_window_of_the_wrong_type_or_sign_is_refused(
    family: str, window: object, tmp_path: Path
) -> None:
    write_random_model(tmp_path, family, seed=2, layers=1)
    edit_config(tmp_path, sliding_window=window, use_sliding_window=True)
    with pytest.raises(CheckpointError, match=rf"sliding_window is {window!r}; it must be an int"):
        read_architecture(tmp_path)


def test_layer_types_that_contradict_mistrals_window_are_refused(tmp_path: Path) -> None:
    write_random_model(tmp_path, "mistral", seed=2, layers=2)
    edit_config(tmp_path, sliding_window=33, layer_types=["sliding_attention"] * 2)
    assert read_architecture(tmp_path).windows == (33, 33)
    edit_config(tmp_path, layer_types=["sliding_attention", "full_attention"])
    with pytest.raises(UnsupportedModelError, match="only Qwen supports windows by layer"):
        read_architecture(tmp_path)


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "longrope", "su", "mrope"])
@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_other_kinds_of_rope_scaling_are_refused_by_name(key: str, kind: str, llama: Path) -> None:
    edit_config(llama, **{"rope_parameters": ..., key: {"rope_type": kind, "factor": 2.0}})
    with pytest.raises(UnsupportedModelError, match=f"rope_type {kind} is not supported; default"):
        read_architecture(llama)


@pytest.mark.parametrize(
    "name",
    ["MixtralForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM", "Phi3ForCausalLM",
     "DeepseekV3ForCausalLM", "GptOssForCausalLM", "LlamaForSequenceClassification"],
)  # fmt: skip
def test_other_families_are_refused_by_name(name: str, llama: Path) -> None:
    edit_config(llama, architectures=[name])
    with pytest.raises(UnsupportedModelError, match=f"{name} is not supported; LlamaForCausalLM"):
        read_architecture(llama)


def test_rope_scaling_beside_rope_parameters_must_say_the_same(llama: Path) -> None:
    edit_config(llama, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    plain = read_architecture(llama).rope
    edit_config(llama, rope_scaling=YARN)
    with pytest.raises(UnsupportedModelError, match="rope_type yarn is not supported"):
        read_architecture(llama)
    edit_config(llama, rope_scaling=LLAMA3)
    with pytest.raises(
        CheckpointError, match=r"rope_parameters are .* disagree: .*remove rope_scaling"
    ):
        read_architecture(llama)
    edit_config(llama, rope_parameters={**LLAMA3, "rope_theta": 5e5})
    assert read_architecture(llama).rope.factor == 8.0
    edit_config(llama, rope_parameters={"rope_theta": 5e5}, rope_scaling={"type": "default"})
    assert read_architecture(llama).rope == plain
