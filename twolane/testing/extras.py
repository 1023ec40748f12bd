"""Checks, before a process is started that needs it, whether the extra `[serve]` is installed."""

from __future__ import annotations

import importlib.util

SERVE_MODULES = (
    "click",
    "grpc_health",
    "grpc_reflection",
    "httptools",
    "huggingface_hub",
    "jinja2",
    "msgspec",
    "numpy",
    "prometheus_client",
    "pydantic",
    "rich",
    "starlette",
    "tokenizers",
    "uvicorn",
    "xxhash",
    "yaml",
)


MODEL_MODULES = ("safetensors", "torch")  # a fake engine does without


def missing_for_serving(launcher: str | None, engine: str | None = None) -> str | None:
    """A message for the user if packages are missing, or None. Ray is needed only by its launcher.
    A `launcher` of None means that a file, not read yet, may set it."""
    needed = [*SERVE_MODULES]
    needed += MODEL_MODULES if engine != "fake" else ()
    needed += ("ray",) if launcher == "ray" else ()
    for module in needed:
        if importlib.util.find_spec(module) is None:
            return f"serving needs {module}, which is not installed: pip install 'twolane[serve]'"
    return None
