"""A page of the console, and what there is to see on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from twolane.errors import TwolaneError
from twolane.testing.local import LocalCluster

WAIT_MS = 60_000  # for what a loaded machine takes long for


@contextmanager
def page_of(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page that complains about nothing, and asks nobody but its router."""
    complaints: list[str] = []
    asked: set[str] = set()
    page = browser.new_page(viewport={"width": 1360, "height": 860}, **options)
    page.set_default_timeout(WAIT_MS)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda told: complaints.append(told.text))
    page.on("request", lambda request: asked.add(request.url))
    page.goto(url)
    try:
        yield page
    finally:
        page.close()
    origin = url.partition("/console")[0]
    assert {its for its in asked if not its.startswith((f"{origin}/console", "data:"))} == set()
    assert [line for line in complaints if "401" not in line] == []


@contextmanager
def load(cluster: LocalCluster, n_clients: int = 4) -> Iterator[list[int]]:
    """Clients that ask again and again. Yields the lengths of answers, so far; each is whole."""
    lengths: list[int] = []
    errors: list[TwolaneError] = []
    is_over = threading.Event()

    def ask(number: int) -> None:
        with cluster.client() as client:
            i = 0
            while not is_over.is_set():
                i += 1
                try:
                    answer = client.generate(
                        "Once upon a time, " * (4 + 25 * number),
                        max_tokens=160 + 40 * number,
                        request_id=f"story-{number}-{i}",
                        ignore_eos=True,
                    )
                except TwolaneError as error:
                    errors.append(error)
                    return
                lengths.append(len(answer.token_ids) - 160 - 40 * number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(n_clients)]
    for thread in threads:
        thread.start()
    try:
        yield lengths
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert {*lengths} == {0}


def wait_alive(page: Any, n: int) -> None:
    """Until the page shows so many workers that are alive."""
    page.wait_for_selector(f":nth-match(#workers tr[data-state=alive], {n})")
