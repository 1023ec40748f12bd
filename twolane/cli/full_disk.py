"""What a command says, and exits with, where its output or its errors cannot be written."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, NoReturn

import click

_DISK_TAKES_NOTHING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


class OnFullDisks(click.Command):
    """A command that says so in one line."""

    def main(self, *args: Any, **more: Any) -> Any:
        try:
            return super().main(*args, **more)
        except OSError as error:
            tell_of_the_disk(error)

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with _shown_if_it_can_be():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _shown_if_it_can_be():
            return super().invoke(ctx)


@contextmanager
def _shown_if_it_can_be() -> Iterator[None]:
    """click's own errors: an exit code is left of those that standard error does not take."""
    try:
        yield
    except click.ClickException as error:
        show = error.show

        def show_if_it_can_be(file: IO[Any] | None = None) -> None:
            with suppress(OSError):
                show(file)

        error.show = show_if_it_can_be  # type: ignore[method-assign]
        raise


def tell_of_the_disk(error: OSError) -> NoReturn:
    """Say that the disk takes nothing, and exit. Raises any other error."""
    if error.errno not in _DISK_TAKES_NOTHING:
        raise error
    what = error.filename or "the output"
    complain(f"cannot write {what}: {error.strerror}")
    _drop_output()
    sys.exit(1)


def complain(text: str) -> None:
    with suppress(OSError):  # standard error takes nothing: the exit code still says it
        click.secho("Error: ", fg="red", nl=False, err=True)
        click.echo(text, err=True)


def _drop_output() -> None:
    """Drop what standard output does not take, which Python would try to write once more at its
    end, and complain again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
