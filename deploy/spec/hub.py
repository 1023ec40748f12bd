"""Finds the directory for `--model`: the bundled model, a directory, or a Hugging Face Hub id."""

from __future__ import annotations

import re
from pathlib import Path

from twolane.deploy.bundled import model_path
from twolane.deploy.errors import StartError
from twolane.deploy.spec.settings import BUNDLED

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


def find_model(model: str) -> tuple[str, Path]:
    """The model's name for users and its directory. Raises `StartError` if it cannot be used."""
    if model == BUNDLED:
        return BUNDLED, model_path()
    path = Path(model).expanduser()
    if (path / "config.json").is_file():
        return path.resolve().name, path.resolve()
    if path.is_dir():
        raise StartError(f"{path} has no config.json: not a model in Hugging Face format")
    if not _HUB_ID.fullmatch(model) or model.startswith((".", "/")):
        raise StartError(
            f"no directory {model}; a model is `{BUNDLED}`, a directory with config.json, "
            "or the id of a Hugging Face repository such as Qwen/Qwen3-0.6B"
        )
    return model, _download(model)


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    from huggingface_hub.errors import RepositoryNotFoundError as NotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=_FILES))
    except NotFoundError as error:
        raise StartError(
            f"the Hugging Face Hub knows no model {hub_id} (or it is private: hf auth login)"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise StartError(
            f"{hub_id} is neither a directory nor cached here, and the Hugging Face Hub cannot "
            f"be reached ({type(error).__name__})"
        ) from error
