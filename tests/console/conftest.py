"""A real browser, and a cluster for it to look at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.timing import PATIENT
from twolane.testing.local import LocalCluster, start_local
from twolane.v1 import admin_pb2

CHROMIUM = shutil.which("chromium")
# It sizes its pools, and may not: so there is a scaler to see, and workers stay.
SIZES: dict[str, Any] = {"autoscale": True, "budget": 3, "min_decode": 2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with start_local(prefill=1, decode=2, engine="fake", **SIZES, **PATIENT) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Playwright has an event loop in this thread while it runs: it must end with this file."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium; on Debian and Ubuntu: apt install chromium")
    playwright_api = pytest.importorskip("playwright.sync_api", reason="run `make install`")
    with playwright_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def address(cluster: LocalCluster) -> str:
    """As `twolane console` prints it."""
    with cluster.admin() as admin:
        found = admin.call("OpenConsole", admin_pb2.OpenConsoleRequest())
    return f"{found.url}#{found.token}"
