"""Checkpoints are written as the Hub has them; loads are compared with the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import checkpoint
from benchmarks.engine.points import Shape
from twolane.engine.config import EngineConfig
from twolane.engine.load import load_engine
from twolane.engine.model_files.weight_files import shard_files

SMALL = Shape(layers=2, hidden=64, heads=4, kv_heads=2, dim=16, wide=96, vocab=160)


def write(folder: Path) -> list[Path]:
    return checkpoint.write_checkpoint(SMALL, folder, "cpu", shard_bytes=40_000)


def test_what_is_written_is_a_checkpoint_in_shards(tmp_path: Path) -> None:
    files = write(tmp_path)
    assert len(files) > 1
    assert shard_files(tmp_path) == files
    load_engine(EngineConfig(model_dir=tmp_path, n_pages=4)).close()


def test_a_load_is_told_as_a_share_of_what_the_disk_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write(tmp_path)
    gb = sum(path.stat().st_size for path in files) / 1e9
    started: list[list[str]] = []

    def start_once(model_dir: Path, options: list[str], cache: Path) -> dict[str, float]:
        assert model_dir == tmp_path
        started.append(options)
        took_s = 3.0 if len(started) % 2 else 4.0  # the first compiles; then disk, page cache, disk
        return {"imported_s": 1.0, "loaded_s": 1.0 + took_s * gb, "ready_s": 9.0}

    monkeypatch.setattr(checkpoint, "start_once", start_once)
    monkeypatch.setattr(checkpoint, "read_s", lambda files: 2.0 * gb)
    found: dict[str, Any] = checkpoint.measure(files, n_rounds=2)
    assert len(started) == 5
    assert all(options[-2:] == ["--load-format", "safetensors"] for options in started)
    assert found["disk_gb_per_s"] == 0.5
    assert found["loaded_from_disk_gb_per_s"] == 0.25
    assert found["loaded_from_page_cache_gb_per_s"] == 0.33
    assert found["of_disk"] == 0.5


def test_files_are_read_whole_by_several_threads(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * checkpoint.CHUNK_BYTES + 5))
    checkpoint.forget([path])
    assert checkpoint.read_s([path]) > 0
