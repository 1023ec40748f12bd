"""The console in Chromium, clicked through while a worker is killed."""

from __future__ import annotations

from typing import Any

from tests.console.conftest import address
from tests.console.looking import load, page_of, wait_alive
from twolane.testing.local import LocalCluster

# Whether the list of requests is drawn anew, as when news come.
REDRAWN = """() => {
  const row = document.querySelector("#requests tr");
  document.getElementById("show-running").click();
  return row !== document.querySelector("#requests tr");
}"""


# Notes whether the next press is on such an element.
NOTE_PRESS = """(wanted) => addEventListener(
  "pointerdown",
  (event) => { isThere = event.target.closest(wanted) !== null; },
  { capture: true, once: true },
)"""


def press(page: Any, row: str) -> None:
    """Press the mouse on such a row, however the page moves between the look and the press."""
    for _ in range(20):
        page.evaluate(NOTE_PRESS, row)
        page.hover(f"{row} >> nth=0")
        page.mouse.down()
        if page.evaluate("isThere"):
            return
        page.mouse.move(0, 0)  # so that nothing is clicked
        page.mouse.up()
    raise AssertionError(f"{row} is never where it was looked for")


def test_it_is_clicked_through_while_a_worker_is_killed(
    browser: Any, cluster: LocalCluster
) -> None:
    with load(cluster) as lengths, page_of(browser, address(cluster)) as page:
        wait_alive(page, 3)
        assert "#" not in page.url, "the token is not in the address that people copy"

        page.wait_for_selector("#scaler-pools tr:has-text('decode')")
        slo = "3 of 3 seats · SLO: first token 500 ms, gap 20 ms"
        page.wait_for_selector(f"#scaler-facts:has-text('{slo}')")
        page.wait_for_selector("#scaler-why:has-text('workers, 2 wanted')")
        assert page.inner_text("#scaler-mode") == "on"

        page.fill("#prompt", "Tell me a story.")
        page.press("#prompt", "Enter")
        page.wait_for_selector("#answers .stack i.decode")
        assert "tokens; the first after" in page.inner_text("#answers")

        n_events = len(cluster.events)
        epoch = next(w.epoch for w in cluster.status().workers if w.worker_id == "decode-0")
        cluster.kill("decode-0")
        page.wait_for_selector(f"#events li:has-text('{epoch:016x}) is gone')")
        page.click("#show-ended")
        page.wait_for_selector("#requests .state.good")
        press(page, "#requests tr[data-id]")
        page.evaluate("document.getElementById('show-ended').click()")  # as when news come just now
        page.mouse.up()
        page.wait_for_selector("#trace[open] .span")
        assert "decode" in page.inner_text("#trace")
        page.click("#trace-close")
        page.wait_for_selector("#trace", state="hidden")
        page.click("#show-running")
        for end in ("contextmenu", "blur"):  # no pointer that goes up may come after these
            press(page, "#requests tr")
            assert not page.evaluate(REDRAWN), "the row that is pressed would get no click"
            page.evaluate("end => dispatchEvent(new Event(end))", end)
            assert page.evaluate(REDRAWN), f"the press has not ended with {end}"
            page.mouse.up()

        cluster.wait_for("started", "decode-0", after=n_events, timeout_s=60)
        wait_alive(page, 3)
        n_done = len(lengths)
        while len(lengths) < n_done + 8:  # it goes on, at all workers
            page.wait_for_timeout(100)
        assert page.inner_text("#who") == "operator · 1 router"


def test_a_browser_without_a_token_is_asked_for_a_key(browser: Any, cluster: LocalCluster) -> None:
    url = address(cluster)
    with page_of(browser, url.partition("#")[0], color_scheme="dark") as page:
        page.wait_for_selector("#login-form")
        assert not page.is_visible("#main")
        page.fill("#key", "tl_nobody_knows")
        page.click("#login-form button")
        page.wait_for_selector("#login-error:has-text('twolane console')")
        page.fill("#key", url.partition("#")[2])
        page.click("#login-form button")
        wait_alive(page, 3)
        assert not page.is_visible("#login")
