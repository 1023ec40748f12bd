"""Malformed files of a model are refused with the engine's own errors, and leave nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twolane.engine.config import EngineConfig
from twolane.engine.cpu.engine import load_engine
from twolane.engine.errors import ModelLoadError
from twolane.engine.testing import write_random_model

HUGE = 10**400


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("model"), "llama", seed=1)


def copy_of(model: Path, to: Path) -> Path:
    for path in model.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def load(model_dir: Path) -> None:
    load_engine(EngineConfig(model_dir=model_dir, n_pages=4))


@pytest.mark.parametrize(
    "index",
    ["[]", "null", "3", '{"weight_map": {"a": 1}}', '{"weight_map": {"a": {}}}',
     '{"weight_map": {"a": "a.safetensors", "b": 1}}', '{"weight_map": {"a": ""}}', "[" * 100_000],
)  # fmt: skip
def test_an_index_that_is_none_is_refused(model: Path, tmp_path: Path, index: str) -> None:
    copy_of(model, tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelLoadError):
        load(tmp_path)


COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized"}


@pytest.mark.parametrize(
    "fields",
    [
        {"rms_norm_eps": HUGE},
        {"rope_parameters": {"rope_type": "default", "rope_theta": HUGE}},
        {"quantization_config": {**COMPRESSED, "config_groups": {"a": []}}},
        {"quantization_config": {
            **COMPRESSED, "config_groups": {"a": {"targets": ["Linear"], "weights": [1]}}}},
        {"quantization_config": {"quant_method": "fp8", "ignored_layers": [1, "a"]}},
        {"quantization_config": {"quant_method": "fp8", "ignored_layers": 5}},
    ],
)  # fmt: skip
def test_a_field_of_another_kind_is_refused(
    model: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    config = copy_of(model, tmp_path) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    with pytest.raises(ModelLoadError):
        load(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_json_that_is_too_deep_is_refused(model: Path, tmp_path: Path, name: str) -> None:
    (copy_of(model, tmp_path) / name).write_text("[" * 100_000)
    with pytest.raises(ModelLoadError):
        load(tmp_path)
