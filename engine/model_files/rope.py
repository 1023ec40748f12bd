"""Rotary position embedding: plain, and with Llama 3's scaling by wavelength."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from twolane.engine.config_fields import number_of, object_of, refuse, size_of
from twolane.engine.errors import CheckpointError, UnsupportedModelError

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rope:
    """Base and scaling. `factor` 1: no scaling; otherwise Llama 3's rule with its four numbers."""

    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 0

    def tables(self, positions: int, head_dim: int) -> tuple[FloatArray, FloatArray]:
        """cos and signed sin, each `[positions, head_dim]` in float32.

        For `x * cos + roll(x, head_dim / 2) * sin`: the first half of sin is negated. Angles are
        rounded to float32 as in transformers; their cos and sin are computed in float64, so that a
        table's values do not depend on its length.
        """
        angles = self.angles(positions, head_dim)
        cos, sin = np.cos(angles, dtype=np.float64), np.sin(angles, dtype=np.float64)
        return (
            np.concatenate([cos, cos], axis=1).astype(np.float32),
            np.concatenate([-sin, sin], axis=1).astype(np.float32),
        )

    def angles(self, positions: int, head_dim: int) -> FloatArray:
        """The angles of `tables`: `[positions, head_dim / 2]` in float32."""
        rows = np.arange(positions, dtype=np.float32)[:, None]
        found: FloatArray = rows * self._frequencies(head_dim)
        return found

    def _frequencies(self, head_dim: int) -> FloatArray:
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        plain: FloatArray = np.float32(1) / np.power(np.float32(self.theta), exponents)
        if self.factor == 1.0:
            return plain
        # Long wavelengths are stretched by the factor, short ones kept, those between blended.
        turns = self.original_positions * plain / (2 * math.pi)
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        smooth = np.clip(smooth, 0.0, 1.0)
        blended: FloatArray = ((1 - smooth) * plain / self.factor + smooth * plain).astype(
            np.float32
        )
        return blended


def read_rope(raw: Mapping[str, Any], max_position: int) -> Rope:
    """The rotary options of a config.json, in transformers' new spelling (`rope_parameters`), its
    old one (`rope_theta`, `rope_scaling`), or both if they agree.

    Raises UnsupportedModelError for another kind of scaling, CheckpointError for wrong numbers.
    """
    new, old = object_of(raw, "rope_parameters"), object_of(raw, "rope_scaling")
    if not (new and old):
        return _read(raw, new or old, max_position)
    both = _read(raw, new, max_position), _read(raw, {**_theta(new), **old}, max_position)
    if both[0] != both[1]:
        raise CheckpointError(
            f"config.json: rope_parameters are {new} and rope_scaling is {old}, which disagree: "
            "set rope_parameters, and remove rope_scaling"
        )
    return both[0]


def _theta(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("rope_theta",) if name in options}


def _read(raw: Mapping[str, Any], options: Mapping[str, Any], max_position: int) -> Rope:
    facts = {"partial_rotary_factor": 1.0, "rope_theta": 10000.0}
    facts |= {name: raw[name] for name in facts if raw.get(name) is not None} | dict(options)
    if any(isinstance(value, dict) for value in options.values()):
        raise UnsupportedModelError("rope_parameters by kind of layer are not supported")
    kind = facts.get("rope_type", facts.get("type", "default"))
    if facts["partial_rotary_factor"] != 1.0:
        partial = facts["partial_rotary_factor"]
        raise UnsupportedModelError(f"partial_rotary_factor {partial} is not supported; 1.0 is")
    theta = number_of(facts, "rope_theta")
    if kind == "default":
        return Rope(theta)
    if kind != "llama3":
        raise UnsupportedModelError(f"rope_type {kind} is not supported; default and llama3 are")
    for name in ("factor", "low_freq_factor", "high_freq_factor"):
        if name not in facts:
            raise CheckpointError(f"config.json: llama3 rope scaling lacks {name!r}")
    rope = Rope(
        theta=theta,
        factor=number_of(facts, "factor"),
        low_freq_factor=number_of(facts, "low_freq_factor"),
        high_freq_factor=number_of(facts, "high_freq_factor"),
        original_positions=size_of(facts, "original_max_position_embeddings", max_position),
    )
    if not rope.low_freq_factor < rope.high_freq_factor:
        refuse("low_freq_factor", rope.low_freq_factor, "less than high_freq_factor")
    return rope
