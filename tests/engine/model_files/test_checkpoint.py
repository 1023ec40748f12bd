"""What can be wrong with a model directory, and that each is one typed error that says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from twolane.engine.config import EngineConfig
from twolane.engine.cpu.engine import load_engine
from twolane.engine.errors import CheckpointError, ModelLoadError, UnsupportedModelError
from twolane.engine.model_files.weight_files import (
    FULL_HASH_BYTES,
    shard_files,
    weights_revision,
)
from twolane.engine.progress import Loaded, Readied
from twolane.engine.step import SampledToken
from twolane.engine.testing import write_random_model
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
            "1 tensors are not part.*model.extra",
        ),
        (
            lambda t: t.update({NORM: torch.ones(63)}),
            r"has shape \[63\]; config.json requires \[64\]",
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


def test_weights_quantised_without_a_word_in_the_config_are_named_so(llama: Path) -> None:
    name = "model.layers.0.mlp.down_proj"
    for suffix in ("qweight", "scales", "weight.absmax"):
        quantised = {f"{name}.{suffix}": torch.ones(4)}
        edit_weights(llama, lambda tensors, new=quantised: tensors.update(new))  # type: ignore[misc]
        with pytest.raises(UnsupportedModelError, match=rf"are quantised \({name}\.{suffix}\)"):
            load(llama)
        edit_weights(llama, lambda tensors, old=quantised: [tensors.pop(x) for x in old])  # type: ignore[misc]


def test_a_head_that_is_not_the_embedding_it_is_said_to_be_is_refused(llama: Path) -> None:
    edit_config(llama, tie_word_embeddings=True)
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    edit_weights(llama, lambda tensors: tensors.update({head: tensors[embedding].clone()}))
    load(llama)
    edit_weights(llama, lambda tensors: tensors[head][-1, -1].add_(1))
    with pytest.raises(CheckpointError, match=f"{head} differs from {embedding}: set it false"):
        load(llama)


def test_old_rotary_buffers_are_ignored(llama: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_weights(llama, lambda tensors: tensors.update({name: torch.ones(8)}))
    load(llama)


@pytest.mark.parametrize("keep", [0, 4, 100, 5000])
def test_a_truncated_file_is_refused(keep: int, llama: Path) -> None:
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="is not a valid safetensors file"):
        load(llama)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_file_that_git_has_not_fetched_is_called_so(file: str, llama: Path) -> None:
    (llama / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
    with pytest.raises(CheckpointError, match=rf"{file} is a git-lfs pointer.*git lfs pull"):
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
