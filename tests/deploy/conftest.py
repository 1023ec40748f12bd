"""Tests that serve in the test's own process give it back as it was."""

from __future__ import annotations

import gc
import os
import resource
import secrets
import sys
from collections.abc import Iterator

import pytest

# Ray reads these once in a process, when it is first imported, whichever test does that.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    interval_s, threshold = sys.getswitchinterval(), gc.get_threshold()
    assert gc.get_freeze_count() == 0, "another test has left its heap frozen"
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    gc.unfreeze()
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval_s)
