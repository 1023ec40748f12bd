"""Commands that look again and again outlive the router that they ask.

Until its first answer, a router that does not answer ends the command.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from twolane.admin import AdminClient
from twolane.cli.common import console
from twolane.client import Client
from twolane.errors import DeadlineError, TwolaneError, UnavailableError

_EVERY_S, _AT_MOST_S = 1.0, 30.0

ClientT = TypeVar("ClientT", bound=AdminClient | Client)
FoundT = TypeVar("FoundT")


class Patient(Generic[ClientT]):
    """Owns a client. If it has answered and does so no more, others that `connect` makes are asked,
    wherever the cluster is by then."""

    def __init__(self, client: ClientT, connect: Callable[[], ClientT]) -> None:
        self._client = client
        self._connect = connect
        self._has_answered = False
        self.tell: Callable[[str], None] = _tell

    def look(self, ask: Callable[[ClientT], FoundT]) -> FoundT:
        """What `ask` returns. Raises its last error if it gets no answer for too long."""
        began_s, since = time.monotonic(), time.strftime("%H:%M:%S")
        try:
            found = ask(self._client)
        except (UnavailableError, DeadlineError) as error:
            if not self._has_answered:
                raise
            self.tell(f"the router has not answered since {since}: asking for {_AT_MOST_S:g} s")
            found = self._ask_again(ask, error, began_s + _AT_MOST_S)
        self._has_answered = True
        return found

    def _ask_again(self, ask: Callable[[ClientT], FoundT], why: TwolaneError, end: float) -> FoundT:
        while time.monotonic() < end:
            time.sleep(_EVERY_S)
            try:
                self._client.close()
                self._client = self._connect()
                found = ask(self._client)
            except TwolaneError as error:  # of any kind: one that has just started knows little
                why = error
                continue
            self.tell("the router answers again")
            return found
        raise why

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()


def watch_on_screen(
    patient: Patient[ClientT], ask: Callable[[ClientT], RenderableType], every_s: float
) -> None:
    """Show what `ask` finds until Ctrl-C; while no router answers, the latest below a line that
    says so."""
    shown = patient.look(ask)
    with Live(shown, console=console(), screen=True) as live, suppress(KeyboardInterrupt):

        def tell(text: str) -> None:
            live.update(Group(Text(text, style="yellow"), shown), refresh=True)

        patient.tell = tell
        while True:
            time.sleep(every_s)
            shown = patient.look(ask)
            live.update(shown, refresh=True)


def _tell(text: str) -> None:
    click.echo(text, err=True)
