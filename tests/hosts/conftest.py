"""Tests on fake hosts run in namespaces of their own: `make test-hosts`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.hosts.__main__ import IN_NAMESPACES
from tests.hosts.fake_hosts import Network

_IS_INSIDE = IN_NAMESPACES in os.environ
collect_ignore_glob = [] if _IS_INSIDE else ["test_*.py"]


def pytest_report_header() -> str:
    return "" if _IS_INSIDE else "tests/hosts is left out here: make test-hosts runs it"


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as network:
        yield network
