from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from twolane.deploy.bundled import model_path
from twolane.deploy.errors import StartError
from twolane.deploy.spec.hub import find_model


def test_the_bundled_model_ships_with_the_package() -> None:
    name, path = find_model("bundled")
    assert (name, path) == ("bundled", model_path())
    size = sum(file.stat().st_size for file in path.iterdir())
    assert size <= 8 * 1024 * 1024


def test_a_directory_is_named_after_itself(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").touch()
    assert find_model(f"{tmp_path}/my-model/") == ("my-model", tmp_path / "my-model")


def test_a_hub_id_is_downloaded_without_what_is_not_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}

    def download(hub_id: str, **options: Any) -> str:
        asked.update(options, hub_id=hub_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find_model("Qwen/Qwen3-0.6B") == ("Qwen/Qwen3-0.6B", tmp_path)
    assert asked["hub_id"] == "Qwen/Qwen3-0.6B"
    assert "*.safetensors" in asked["allow_patterns"]
    assert "*.bin" not in asked["allow_patterns"]


def test_offline_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(hub_id: str, **options: Any) -> str:
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(StartError, match="neither a directory nor cached here"):
        find_model("some/model")


@pytest.mark.parametrize("model", ["", "./here", "/nowhere/at/all", "a/b/c", "no spaces/here"])
def test_what_is_neither_is_refused_with_what_would_do(model: str) -> None:
    with pytest.raises(StartError, match=r"a model is `bundled`, a directory|no config\.json"):
        find_model(model)
