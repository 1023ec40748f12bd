"""Rotary position embedding: plain, and with Llama 3's scaling by wavelength."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import CheckpointError, UnsupportedModelError

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rope:
    """Base and scaling. `factor` 1 is plain; otherwise Llama 3's rule with its four numbers."""

    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 0

    def tables(self, positions: int, head_dim: int) -> tuple[FloatArray, FloatArray]:
        """cos and signed sin, each `[positions, head_dim]` in float32.

        For `x * cos + roll(x, head_dim / 2) * sin`: the first half of sin carries the minus sign.
        Angles are rounded to float32 as transformers has them; cos and sin of them are computed in
        float64, so that a table's values do not depend on its length.
        """
        angles = self.angles(positions, head_dim)
        cos, sin = np.cos(angles, dtype=np.float64), np.sin(angles, dtype=np.float64)
        return (
            np.concatenate([cos, cos], axis=1).astype(np.float32),
            np.concatenate([-sin, sin], axis=1).astype(np.float32),
        )

    def angles(self, positions: int, head_dim: int) -> FloatArray:
        """What `tables` is the cos and sin of: `[positions, head_dim / 2]` in float32."""
        rows = np.arange(positions, dtype=np.float32)[:, None]
        found: FloatArray = rows * self._frequencies(head_dim)
        return found

    def _frequencies(self, head_dim: int) -> FloatArray:
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        plain: FloatArray = np.float32(1) / np.power(np.float32(self.theta), exponents)
        if self.factor == 1.0:
            return plain
        # Long waves are stretched by the factor, short ones kept, those between blended.
        turns = self.original_positions * plain / (2 * math.pi)
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        smooth = np.clip(smooth, 0.0, 1.0)
        blended: FloatArray = ((1 - smooth) * plain / self.factor + smooth * plain).astype(
            np.float32
        )
        return blended


def read_rope(raw: Mapping[str, Any], head_dim: int, max_position: int) -> Rope:
    """The rotary options of a config.json, in transformers' old or new spelling.

    Raises UnsupportedModelError for another kind of scaling, CheckpointError for absent numbers.
    """
    options = dict(raw.get("rope_parameters") or {})
    options = options or dict(raw.get("rope_scaling") or {})
    kind = options.get("rope_type", options.get("type", "default"))
    theta = options.get("rope_theta", raw.get("rope_theta", 10000.0))
    partial = options.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise UnsupportedModelError(f"partial_rotary_factor {partial} is not supported; 1.0 is")
    if kind == "default":
        return Rope(float(theta))
    if kind != "llama3":
        raise UnsupportedModelError(f"rope_type {kind} is not supported; default and llama3 are")
    try:
        return Rope(
            theta=float(theta),
            factor=float(options["factor"]),
            low_freq_factor=float(options["low_freq_factor"]),
            high_freq_factor=float(options["high_freq_factor"]),
            original_positions=int(options.get("original_max_position_embeddings", max_position)),
        )
    except KeyError as error:
        raise CheckpointError(f"config.json: llama3 rope scaling lacks {error}") from error
