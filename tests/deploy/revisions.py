"""Another revision of the bundled model: the same tokenizer and sizes, other weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from twolane.deploy.bundled import model_path

_WEIGHTS = "model.safetensors"


def another_revision(folder: Path, seed: int = 1) -> Path:
    """Each weight is changed by up to 2 %, by that seed. A fake engine of it answers otherwise,
    too, and refuses the pages of the other revision."""
    shutil.copytree(model_path(), folder)
    draws = torch.Generator().manual_seed(seed)
    weights = load_file(model_path() / _WEIGHTS)
    changed = {
        name: weight
        * (1 + 0.02 * (2 * torch.rand(weight.shape, generator=draws) - 1)).to(weight.dtype)
        for name, weight in sorted(weights.items())
    }
    save_file(changed, folder / _WEIGHTS, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["fake_revision"] = f"seed {seed}"
    (folder / "config.json").write_text(json.dumps(config))
    return folder
