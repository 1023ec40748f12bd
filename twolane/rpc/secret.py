"""The cluster's secret, which routers, workers and the launcher present to each other on one
machine.

    await stub.Announce(request, metadata=shown(secret))

It is sent in plain text, so only listeners that no other machine can reach accept it (see
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
    """The call metadata that presents the secret."""
    return ((METADATA_KEY, secret),)
