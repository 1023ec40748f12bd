"""Is the extra `[serve]` installed? Asked before a process is started that needs it."""

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
    "redis",
    "rich",
    "safetensors",
    "starlette",
    "tokenizers",
    "torch",
    "transformers",
    "uvicorn",
    "xxhash",
    "yaml",
)


def missing_for_serving(launcher: str | None) -> str | None:
    """What to tell the user, or None. Ray is needed by its own launcher alone; which that is may
    stand in a file that is not read yet: None."""
    needed = (*SERVE_MODULES, "ray") if launcher == "ray" else SERVE_MODULES
    for module in needed:
        if importlib.util.find_spec(module) is None:
            return f"serving needs {module}, which is not installed: pip install 'twolane[serve]'"
    return None
