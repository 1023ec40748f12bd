"""What can be wrong with a model directory, and that each is one typed error that says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.architecture import read_architecture
from engine.checkpoint import FULL_HASH_BYTES, shard_files, weights_revision
from engine.config import EngineConfig
from engine.cpu import load_engine
from engine.errors import CheckpointError, ModelLoadError, UnsupportedModelError
from engine.progress import Loaded, Readied
from engine.step import SampledToken
from engine.testing import write_random_model
from twolane.params import SamplingParams

Answer = Callable[..., list[SampledToken]]


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_random_model(tmp_path, "llama", seed=2, layers=1)


def load(model_dir: Path) -> None:
    load_engine(EngineConfig(model_dir=model_dir, n_pages=4)).close()


def edit_config(model_dir: Path, **changes: Any) -> None:
    path = model_dir / "config.json"
    facts = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in facts.items() if v is not ...}))


def edit_weights(model_dir: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(model_dir / "model.safetensors")
    edit(tensors)
    save_file(tensors, model_dir / "model.safetensors")


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (lambda t: t.pop(NORM), f"tensor {NORM} is missing"),
        (
            lambda t: t.update({"model.extra": torch.ones(2)}),
            "1 tensors have no place.*model.extra",
        ),
        (
            lambda t: t.update({NORM: torch.ones(63)}),
            r"has shape \[63\]; config.json asks for \[64\]",
        ),
        (lambda t: t.update({NORM: torch.ones(64, dtype=torch.int8)}), "is torch.int8"),
    ],
)
def test_wrong_tensors_are_named(
    edit: Callable[[dict[str, torch.Tensor]], object], complaint: str, llama: Path
) -> None:
    edit_weights(llama, edit)
    with pytest.raises(CheckpointError, match=complaint):
        load(llama)


def test_old_rotary_buffers_are_ignored(llama: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_weights(llama, lambda tensors: tensors.update({name: torch.ones(8)}))
    load(llama)


@pytest.mark.parametrize("keep", [0, 4, 100, 5000])
def test_a_truncated_file_is_refused(keep: int, llama: Path) -> None:
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="is not a sound safetensors file"):
        load(llama)


def test_missing_files_are_named(llama: Path, tmp_path: Path) -> None:
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pickled \.bin weights are not read"):
        load(llama)
    (llama / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load(llama)
    with pytest.raises(ModelLoadError):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["{", "[]", '"x"'])
def test_a_config_that_is_no_object_is_refused(text: str, llama: Path) -> None:
    (llama / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load(llama)


@pytest.mark.parametrize(
    ("changes", "kind", "complaint"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, UnsupportedModelError, "GemmaForCausalLM is not"),
        ({"architectures": []}, UnsupportedModelError, "model_type llama is not supported"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "gelu is not supported; silu is"),
        ({"quantization_config": {"bits": 4}}, UnsupportedModelError, "quantised"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
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
        ({"vocab_size": 400}, CheckpointError, r"config.json asks for \[400, 64\]"),
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
    with pytest.raises(CheckpointError, match="does not describe 2 layers"):
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


def test_eos_ids_are_those_of_both_configs(llama: Path) -> None:
    edit_config(llama, eos_token_id=[7, 2])
    (llama / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert read_architecture(llama).eos_token_ids == (2, 7, 9)


def test_shards_read_as_one_file_does(tmp_path: Path, answer: Answer) -> None:
    greedy = SamplingParams(temperature=0.0, top_logprobs=3)
    news: list[Loaded | Readied] = []
    found = []
    for name, size in (("one", None), ("many", 60_000)):
        path = write_random_model(tmp_path / name, "qwen3", seed=2, max_shard_bytes=size)
        config = EngineConfig(model_dir=path, n_pages=8)
        engine = load_engine(config, progress=news.append)
        found.append(answer(engine, [5, 6, 7], greedy, 3))
    assert len(shard_files(tmp_path / "many")) > 2
    assert found[0] == found[1]
    seen = [loaded for loaded in news if isinstance(loaded, Loaded)]
    assert [loaded.tensors for loaded in seen] == [*range(len(seen) // 2)] * 2
    assert seen[0].n_bytes == 0
    assert seen[-1].tensors == seen[-1].of_tensors
    on_disk = sum(path.stat().st_size for path in shard_files(tmp_path / "many"))
    assert on_disk * 0.8 < seen[-1].n_bytes == seen[-1].of_bytes < on_disk


def test_a_missing_shard_and_a_broken_index_are_named(tmp_path: Path) -> None:
    write_random_model(tmp_path, "qwen3", seed=2, max_shard_bytes=60_000)
    shard_files(tmp_path)[1].unlink()
    with pytest.raises(CheckpointError, match="names shards that are missing: model-00002"):
        load(tmp_path)
    for text in ("{", "{}", '{"weight_map": 3}'):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        with pytest.raises(CheckpointError, match="is not an index of shards"):
            load(tmp_path)


def test_one_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_random_model(tmp_path, "qwen3", seed=2, max_shard_bytes=60_000)
    first, second = shard_files(tmp_path)[:2]
    save_file(load_file(first) | load_file(second), second)
    with pytest.raises(CheckpointError, match="is in more than one shard"):
        load(tmp_path)


def test_the_revision_sees_a_changed_weight(llama: Path) -> None:
    files = shard_files(llama)
    whole = weights_revision(files)
    assert weights_revision(files) == whole
    edit_weights(llama, lambda tensors: tensors[NORM].add_(1))
    assert weights_revision(files) != whole


@pytest.mark.parametrize("at", [9, 5000, -1])
def test_the_revision_of_a_large_shard_samples_head_body_and_tail(at: int, tmp_path: Path) -> None:
    path, size = tmp_path / "model.safetensors", FULL_HASH_BYTES + 1
    with path.open("wb") as file:  # sparse: takes no room
        file.write((4000).to_bytes(8, "little"))
        file.truncate(size)
    before = weights_revision([path])
    with path.open("r+b") as file:
        file.seek(at % size)
        file.write(b"x")
    assert weights_revision([path]) != before
