"""Checks whether the extra `[serve]` is installed, before a process that needs it is started."""

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


MODEL_MODULES = ("safetensors", "torch")  # not needed by the fake engine


def missing_for_serving(launcher: str | None, engine: str | None = None) -> str | None:
    """A message that names a missing package, or None if none is missing. Only the launcher "ray"
    needs Ray; pass None for a launcher that is not known yet."""
    needed = [*SERVE_MODULES]
    needed += MODEL_MODULES if engine != "fake" else ()
    needed += ("ray",) if launcher == "ray" else ()
    for module in needed:
        if importlib.util.find_spec(module) is None:
            return f"serving needs {module}, which is not installed: pip install 'twolane[serve]'"
    return None
