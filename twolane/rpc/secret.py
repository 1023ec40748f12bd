"""The cluster's secret: what routers, workers and the launcher show each other on one machine.

    await stub.Announce(request, metadata=shown(secret))

It travels in plain text, so it counts at listeners that no other machine reaches (see
`twolane.security.credentials`).
"""

from __future__ import annotations

import secrets

METADATA_KEY = "twolane-cluster-secret"
MIN_SECRET_CHARS = 16


def new_secret() -> str:
    """256 random bits, as text."""
    return secrets.token_hex(32)


def shown(secret: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call that shows it."""
    return ((METADATA_KEY, secret),)
