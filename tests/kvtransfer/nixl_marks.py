"""Tests over NIXL skip, and say why, where it is not installed."""

from __future__ import annotations

from typing import Any

import pytest

from twolane.kvtransfer.transports.nixl import agent

needs_nixl = pytest.mark.skipif(
    not agent.is_installed(), reason="nixl-cu13 is not installed: pip install 'twolane[nixl]'"
)


def over_nixl(*values: Any) -> Any:
    """A case of a parametrised test whose last value, the transport, is nixl."""
    return pytest.param(*values, "nixl", marks=needs_nixl)
