"""Options of `twolane up`, as a benchmark's command line names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def start_options(texts: Sequence[str]) -> dict[str, Any]:
    """For `start_local`. A text is `NAME=VALUE`, or `NAME` of a flag that is set."""
    named = [text.partition("=") for text in texts]
    return {name.replace("-", "_"): value or True for name, _, value in named}
