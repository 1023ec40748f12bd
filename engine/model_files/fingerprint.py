"""The model fingerprint: workers whose fingerprints differ are never paired."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

import torch

from twolane.engine.model_files.architecture import Architecture


def model_fingerprint(
    arch: Architecture,
    *,
    revision: str,
    dtype: str,
    exact: bool,
    threads: int,
    attention: str,
    device: str = "cpu",
    fp8_weights: bool = False,
    kv_dtype: str = "auto",
    ranks: int = 1,
) -> str:
    """SHA-256 (hex) over the canonical architecture, the weights' revision, the dtype, and whether
    the weights are FP8.

    In exact mode also over everything that exactness depends on: kind of device, thread count,
    torch build, the attention's order of summation, the dtype of keys and values, the number of
    ranks. Otherwise these may differ between two sides: the layout describes how pages are laid
    out.
    """
    facts: dict[str, object] = {
        "architecture": asdict(arch),
        "revision": revision,
        "dtype": dtype,
        "weights": "fp8" if fp8_weights else dtype,
    }
    if exact:
        facts["exact"] = {
            "device": device,
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "threads": threads,
            "torch": torch.__version__,
            "attention": attention,
            "kv_dtype": dtype if kv_dtype == "auto" else kv_dtype,
        }
        if ranks > 1:
            facts["ranks"] = ranks
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
