"""Draws without a generator of their own are the same in every run of a test, whatever ran before
it in this process."""

from __future__ import annotations

import random
import sys
import zlib

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """For a conftest.py: before the fixtures, which may draw as well."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    if torch := sys.modules.get("torch"):  # who imports it later has torch's own first seed
        torch.manual_seed(seed)
