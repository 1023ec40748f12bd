"""Writes the pictures of the console in docs/images: look at them before you commit them.

python -m tests.console.pictures
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.console.conftest import CHROMIUM, SIZES, address
from tests.console.looking import load, page_of, wait_alive
from tests.timing import PATIENT
from twolane.testing.local import LocalCluster, start_local

PICTURES = Path(__file__).parents[2] / "docs" / "images"
VIEW = {"width": 1360, "height": 1060}
BUSY_MS = 15_000  # until the charts have something to show


def write(page: Any, name: str) -> None:
    PICTURES.mkdir(exist_ok=True)
    path = PICTURES / name
    page.screenshot(path=str(path))
    # of few colours, but with each that a legend has
    few = Image.open(path).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    few.save(path, optimize=True)
    print(path)


def light(browser: Any, cluster: LocalCluster) -> None:
    """A story, and a worker that is killed."""
    with load(cluster), page_of(browser, address(cluster)) as page:
        page.set_viewport_size(VIEW)
        wait_alive(page, 3)
        page.fill("#prompt", "Tell me a story.")
        page.press("#prompt", "Enter")
        page.wait_for_selector("#answers .stack i.decode")
        page.wait_for_timeout(BUSY_MS)
        write(page, "console.png")
        epoch = next(w.epoch for w in cluster.status().workers if w.worker_id == "decode-0")
        n_events = len(cluster.events)
        cluster.kill("decode-0")
        page.wait_for_selector(f"#events li:has-text('{epoch:016x}) is gone')")
        write(page, "console-kill.png")
        cluster.wait_for("started", "decode-0", after=n_events, timeout_s=60)


def dark(browser: Any, cluster: LocalCluster) -> None:
    """A trace."""
    with load(cluster), page_of(browser, address(cluster), color_scheme="dark") as page:
        page.set_viewport_size(VIEW)
        page.wait_for_selector("#requests tr[data-id]")
        page.wait_for_timeout(BUSY_MS)
        write(page, "console-dark.png")
        page.click("#show-ended")
        page.click("#requests tr[data-id] >> nth=0")
        page.wait_for_selector("#trace[open] .span")
        write(page, "console-trace.png")


def main() -> int:
    if CHROMIUM is None:
        print("there is no chromium; on Debian and Ubuntu: apt install chromium", file=sys.stderr)
        return 1
    with (
        start_local(prefill=1, decode=2, **SIZES, **PATIENT) as cluster,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        light(browser, cluster)
        dark(browser, cluster)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
