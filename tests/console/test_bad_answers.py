"""The console while the router answers badly or not at all: it says so, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.console.looking import WAIT_MS
from twolane.router.doors import console

ASSETS = Path(console.__file__).parent / "assets"
URL = "http://console.test/console"
WORKERS = [
    {"worker": {"worker_id": name}, "roles": [role], "state": "alive", "model": "m"}
    for name, role in (("p0", "ROLE_PREFILL"), ("d0", "ROLE_DECODE"))
]
REQUEST = {"submission_id": "s", "request_id": "r1", "state": "running"}
LOOK = {
    "who": "operator",
    "role": "operator",
    "status": {"router_id": "router-0", "workers": WORKERS},
    "running": {"requests": [REQUEST]},
    "ended": {},
    "events": {},
}
TRACE = {"trace": {"request": REQUEST, "ledger": {"decode_s": 0.5}}}
CHAT = "".join(
    f"data: {line}\n\n"
    for line in (
        '{"choices": [{"delta": {"content": "Once"}}]}',
        '{"usage": {"completion_tokens": 1}}',
    )
)
# How a router answers badly; None: never.
BAD: dict[str, dict[str, Any] | None] = {
    "of a proxy": {"status": 502, "body": "<html>502 Bad Gateway</html>"},
    "cut off": {"body": '{"who": "op'},
    "never": None,
}
SEEN_MS = 500  # a click's question is here by then, and what was answered is drawn
NO_ANSWER = "#so-what.bad:has-text('the router does not answer')"


class ScriptedRouter:
    """`bad`: how it answers the paths that it answers badly. `held`: the questions about a request
    that it has not answered yet; None: it answers them."""

    def __init__(self) -> None:
        self.held: list[Any] | None = None
        self.bad: dict[str, dict[str, Any] | None] = {}
        self.chats: list[list[str]] = []  # the contents of each chat's messages

    def answer(self, route: Any) -> None:
        request = route.request
        path = request.url.removeprefix(URL).partition("?")[0]
        if path == "/api/chat":
            self.chats.append([its["content"] for its in request.post_data_json["messages"]])
        if path in self.bad:
            if (told := self.bad[path]) is not None:
                route.fulfill(**told)
        elif path == "/api/look":
            route.fulfill(json=LOOK)
        elif path == "/api/request" and self.held is not None:
            self.held.append(route)
        elif path == "/api/request":
            route.fulfill(json=TRACE)
        elif path == "/api/chat":
            route.fulfill(body=CHAT, headers={"x-request-id": "r1"})
        else:
            route.fulfill(path=ASSETS / (path.removeprefix("/") or "page.html"))


@contextmanager
def console_of(browser: Any, router: ScriptedRouter) -> Iterator[tuple[Any, list[str]]]:
    """The page, and what it complains about. Nothing that it throws may be left to the browser."""
    complaints: list[str] = []
    thrown: list[str] = []
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    page.on("pageerror", lambda error: thrown.append(str(error)))
    page.on("console", lambda told: complaints.append(told.text))
    page.route("**/*", router.answer)
    page.goto(URL)
    try:
        page.wait_for_selector("#so-what:has-text('there is room')")
        yield page, complaints
    finally:
        page.close()
    assert thrown == []


@pytest.mark.parametrize("kind", BAD)
def test_a_look_without_an_answer_is_told_and_the_next_one_is_drawn(
    kind: str, browser: Any
) -> None:
    router = ScriptedRouter()
    with console_of(browser, router) as (page, _):
        router.bad["/api/look"] = BAD[kind]
        page.wait_for_selector(NO_ANSWER)
        router.bad.clear()
        page.wait_for_selector("#so-what:has-text('there is room')")


def test_an_error_of_the_router_and_one_without_words_are_told(browser: Any) -> None:
    router = ScriptedRouter()
    with console_of(browser, router) as (page, _):
        router.bad["/api/look"] = {"status": 503, "json": {"error": {"message": "it stops"}}}
        page.wait_for_selector("#so-what.bad:has-text('it stops')")
        router.bad["/api/look"] = {"status": 500, "json": {}}
        page.wait_for_selector("#so-what.bad:has-text('HTTP 500')")
        router.bad.clear()
        page.wait_for_selector("#so-what:has-text('there is room')")


def test_what_cannot_be_drawn_is_told_and_logged_and_the_next_look_is_drawn(browser: Any) -> None:
    router = ScriptedRouter()
    with console_of(browser, router) as (page, complaints):
        router.bad["/api/look"] = {"json": {**LOOK, "status": {"workers": [{}]}}}
        page.wait_for_selector("#so-what.bad:has-text('cannot show')")
        router.bad.clear()
        page.wait_for_selector("#so-what:has-text('there is room')")
        assert any("TypeError" in line for line in complaints)


@pytest.mark.parametrize("kind", BAD)
def test_a_request_that_cannot_be_opened_is_told_and_opens_later(kind: str, browser: Any) -> None:
    router = ScriptedRouter()
    with console_of(browser, router) as (page, _):
        router.bad["/api/request"] = BAD[kind]
        page.eval_on_selector("#requests tr[data-id]", "row => row.click()")
        page.wait_for_selector("#trace[open] h2:has-text('the router does not answer')")
        page.click("#trace-close")
        router.bad.clear()
        page.eval_on_selector("#requests tr[data-id]", "row => row.click()")
        page.wait_for_selector("#trace[open] h2:has-text('r1 · running')")


def test_a_late_answer_to_an_earlier_click_does_not_replace_a_later_ones(browser: Any) -> None:
    router = ScriptedRouter()
    with console_of(browser, router) as (page, _):
        router.held = []
        page.eval_on_selector("#requests tr[data-id]", "row => row.click()")
        page.wait_for_timeout(SEEN_MS)
        (early,), router.held = router.held, None
        page.eval_on_selector("#requests tr[data-id]", "row => row.click()")
        page.wait_for_selector("#trace[open] h2:has-text('r1 · running')")
        with page.expect_response("**/api/request*") as late:
            early.fulfill(json={"trace": {"request": {**REQUEST, "state": "queued"}}})
        late.value.finished()
        page.wait_for_timeout(SEEN_MS)
        assert page.inner_text("#trace h2") == "r1 · running"


@pytest.mark.parametrize("kind", BAD)
def test_a_chat_whose_times_are_not_told_keeps_its_answer_and_goes_on(
    kind: str, browser: Any
) -> None:
    router = ScriptedRouter()
    with console_of(browser, router) as (page, _):
        router.bad["/api/request"] = BAD[kind]
        page.fill("#prompt", "Tell.")
        page.press("#prompt", "Enter")
        page.wait_for_selector("#answers small:has-text('does not say where the time went')")
        assert "1 token; the first after" in page.inner_text("#answers")
        page.wait_for_selector("#send:enabled")
        router.bad.clear()
        page.fill("#prompt", "More.")
        page.press("#prompt", "Enter")
        page.wait_for_selector("#answers .stack i.decode")
        assert router.chats == [["Tell."], ["Tell.", "Once", "More."]]
