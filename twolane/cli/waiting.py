"""What a command waits for: none is silent for much longer than two seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import click

from twolane.errors import TwolaneError

_LOOK_S, _AGAIN_S = 2.0, 30.0  # until it is told; until the same is told again
_one_tells = threading.Lock()
ItemT = TypeVar("ItemT")


class News:
    """Says what is new, and every half minute what is not, with the time since this was made."""

    def __init__(self, *, err: bool = True) -> None:
        self._began = self._told_at = time.monotonic()
        self._told = ""
        self._err = err

    def tell(self, text: str, figure: str = "") -> None:
        """`figure` follows the text, and is no news where it alone has changed."""
        now = time.monotonic()
        is_new = text != self._told
        if is_new or now - self._told_at >= _AGAIN_S:
            since = "" if is_new else f" ({now - self._began:.0f} s)"
            click.echo(f"{text}{figure}{since}", err=self._err)
            self._told, self._told_at = text, now


def no_answer() -> str:
    return "the router has not answered yet"


def no_token() -> str:
    return "no token has come yet"


@contextmanager
def telling(left: Callable[[], str], news: News | None = None) -> Iterator[None]:
    """Say what is waited for, from the third second on: on standard error, or as `news`. `left` is
    called in another thread. Within another such block, nothing is said but what that one says."""
    if not _one_tells.acquire(blocking=False):
        yield
        return
    is_over = threading.Event()
    said, before = (News(), "waiting: ") if news is None else (news, "")

    def tell() -> None:
        while not is_over.wait(_LOOK_S):
            try:
                text = left()
            except TwolaneError as error:
                text = str(error)
            if not is_over.is_set():
                said.tell(f"{before}{text}")

    thread = threading.Thread(target=tell, name="telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        _one_tells.release()


def telling_of_the_first(items: Iterable[ItemT], left: Callable[[], str]) -> Iterator[ItemT]:
    """The items. Until the first is there, what is waited for is said as by `telling`."""
    rest = iter(items)
    with telling(left):
        first = list(islice(rest, 1))
    yield from first
    yield from rest
