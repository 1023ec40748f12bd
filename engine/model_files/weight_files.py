"""Finds and identifies the files of a model's weights. Imports no torch: agents use it, too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from twolane.engine.errors import CheckpointError

SAMPLE_BYTES = 1 << 20
SAMPLES = 16
FULL_HASH_BYTES = 64 << 20


def shard_files(model_dir: Path) -> list[Path]:
    """The safetensors files of a directory, sorted; all exist."""
    index, single = model_dir / "model.safetensors.index.json", model_dir / "model.safetensors"
    if single.exists():
        return [single]
    if not index.exists():
        hint = " (pickled .bin weights are not read)" if list(model_dir.glob("*.bin")) else ""
        raise CheckpointError(f"{model_dir} has no model.safetensors, nor an index of shards{hint}")
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a shard's name is no text")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of shards: {error!r}") from error
    missing = [name for name in names if not (model_dir / name).is_file()]
    if missing:
        raise CheckpointError(f"{index} names shards that are missing: {', '.join(missing[:4])}")
    return [model_dir / name for name in names]


def weights_revision(files: Iterable[Path]) -> str:
    """SHA-256 (hex) over the shards: identifies the weights.

    A shard of up to 64 MiB is hashed whole. For a larger one: its size, its header with every
    tensor's name, shape and offset, and 16 chunks of 1 MiB spread over it, including the last
    bytes. Two revisions of a model that differ in none of these are treated as equal.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            if size <= FULL_HASH_BYTES:
                digest.update(file.read())
                continue
            header_bytes = int.from_bytes(file.read(8), "little")
            digest.update(file.read(min(header_bytes, size)))
            for i in range(SAMPLES):
                file.seek((size - SAMPLE_BYTES) * i // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def bytes_to_read(files: Iterable[Path]) -> int:
    """How much of the shards `weights_revision` reads, but for headers of large ones."""
    sizes = [path.stat().st_size for path in files]
    return sum(its if its <= FULL_HASH_BYTES else SAMPLES * SAMPLE_BYTES for its in sizes)
