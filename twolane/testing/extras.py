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
    "rich",
    "starlette",
    "tokenizers",
    "uvicorn",
    "xxhash",
    "yaml",
)


MODEL_MODULES = ("safetensors", "torch")  # a fake engine does without


def missing_for_serving(launcher: str | None, engine: str | None = None) -> str | None:
    """What to tell the user, or None. Ray is needed by its own launcher alone; which that is may
    stand in a file that is not read yet: None."""
    needed = [*SERVE_MODULES]
    needed += MODEL_MODULES if engine != "fake" else ()
    needed += ("ray",) if launcher == "ray" else ()
    for module in needed:
        if importlib.util.find_spec(module) is None:
            return f"serving needs {module}, which is not installed: pip install 'twolane[serve]'"
    return None
