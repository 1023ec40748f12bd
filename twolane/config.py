"""The client's settings, and the only place in `twolane` that reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass

ENDPOINT_VARIABLE = "TWOLANE_ENDPOINT"
DEFAULT_ENDPOINT = "localhost:7200"


def endpoint_from_env() -> str:
    """Where the cluster is: `TWOLANE_ENDPOINT`, else localhost:7200."""
    return os.environ.get(ENDPOINT_VARIABLE) or DEFAULT_ENDPOINT


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """`timeout_s` is the deadline of a generation that names none; None lets it run for ever.
    `call_timeout_s` bounds every short call (cancel, models, status, drain)."""

    timeout_s: float | None = None
    connect_timeout_s: float = 5.0
    call_timeout_s: float = 10.0
