"""The inputs of a forward pass: one block of bytes, staged on the host and copied at once.

    token    ids, follow, positions, slots                [n]   decode rows first, then chunks
    row      lengths, tables                              [r]   decode rows, then chunks
    sampled  wanted, temperatures, seeds, samples, index  [s]
    tiles    one table per window                         [t]   of the chunks

A CUDA graph reads one fixed block; each step's inputs are copied into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from twolane.engine.kernels.attention.prefill_plan import TILE_RECORD

_ALIGN = 64
_TORCH = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32}
_FIELDS = (
    ("ids", "int32", "n"),
    ("follow", "int32", "n"),
    ("positions", "int32", "n"),
    ("slots", "int64", "n"),
    ("lengths", "int32", "r"),
    ("wanted", "int64", "s"),
    ("temperatures", "float32", "s"),
    ("seeds", "int64", "s"),
    ("samples", "int32", "s"),
    ("index", "int32", "s"),
)


@dataclass(frozen=True, slots=True)
class InputShape:
    """Numbers of tokens, rows, sampled rows and of each window's tiles; pages per table row, and
    the most pages of a chunk's row."""

    tokens: int
    rows: int
    sampled: int
    table_pages: int
    tiles: tuple[int, ...] = ()
    chunk_pages: int = 0

    @property
    def fields(self) -> list[tuple[str, str, tuple[int, ...]]]:
        size = {"n": self.tokens, "r": self.rows, "s": self.sampled}
        plain = [(name, dtype, (size[of],)) for name, dtype, of in _FIELDS]
        tiles = [(f"tiles{i}", "int32", (n, TILE_RECORD)) for i, n in enumerate(self.tiles)]
        return [*plain, ("tables", "int32", (self.rows, self.table_pages)), *tiles]


class HostInputs:
    """The block in (pinned) host memory: numpy views by name."""

    def __init__(self, shape: InputShape, *, pinned: bool) -> None:
        self.shape = shape
        places, n_bytes = _places(shape)
        self.block = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=pinned)
        raw = self.block.numpy()
        self._views: dict[str, npt.NDArray[Any]] = {
            name: raw[at : at + size].view(dtype).reshape(dims)
            for name, (at, size, dtype, dims) in places.items()
        }

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._views[name]


class DeviceInputs:
    """The block on the device: tensor views as attributes."""

    def __init__(self, shape: InputShape, device: torch.device) -> None:
        self.shape = shape
        places, n_bytes = _places(shape)
        self.block = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
        views = {
            name: self.block[at : at + size].view(_TORCH[dtype]).view(dims)
            for name, (at, size, dtype, dims) in places.items()
        }
        self.ids = views["ids"]
        self.follow = views["follow"]
        self.positions = views["positions"]
        self.slots = views["slots"]
        self.lengths = views["lengths"]
        self.tables = views["tables"]
        self.wanted = views["wanted"]
        self.temperatures = views["temperatures"]
        self.seeds = views["seeds"]
        self.samples = views["samples"]
        self.index = views["index"]
        self.tiles = [views[f"tiles{i}"] for i in range(len(shape.tiles))]

    def load(self, host: HostInputs) -> None:
        """Copy, in the order of the current stream; the host block may be dropped at once."""
        assert host.shape == self.shape
        self.block.copy_(host.block, non_blocking=True)


_Place = tuple[int, int, str, Sequence[int]]


@lru_cache(maxsize=256)  # every step of decode rows has one of few shapes
def _places(shape: InputShape) -> tuple[Mapping[str, _Place], int]:
    """The offset, bytes, dtype and shape of each field; and the total bytes."""
    places: dict[str, _Place] = {}
    at = 0
    for name, dtype, dims in shape.fields:
        size = int(np.prod(dims)) * np.dtype(dtype).itemsize
        places[name] = (at, size, dtype, dims)
        at += -(-size // _ALIGN) * _ALIGN
    return places, max(at, _ALIGN)
