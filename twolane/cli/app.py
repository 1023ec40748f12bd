"""Assembles the commands, and turns errors into one line, a hint and an exit code.

0  done        2  the command line is wrong, or not allowed from here   4  the deadline passed
1  it failed   3  no cluster, or overloaded   5  not proven, not safe in time
130  interrupted or cancelled
"""

from __future__ import annotations

import errno
import sys

import click

from twolane import __version__
from twolane.cli.access.auth import auth
from twolane.cli.access.certs import certs
from twolane.cli.access.context import context
from twolane.cli.chat import chat
from twolane.cli.completion import completion
from twolane.cli.controller import NotProvenError
from twolane.cli.drain import drain
from twolane.cli.examples import show_examples
from twolane.cli.fence import down, fence
from twolane.cli.full_disk import OnFullDisks, complain, tell_of_the_disk
from twolane.cli.generate import generate
from twolane.cli.models import models
from twolane.cli.ops.bundle import bundle
from twolane.cli.ops.check import check
from twolane.cli.ops.config import config
from twolane.cli.ops.console import console
from twolane.cli.ops.doctor import doctor
from twolane.cli.ops.events import events
from twolane.cli.ops.flip import flip
from twolane.cli.ops.hosts import cordon, drain_node, uncordon
from twolane.cli.ops.kill import kill
from twolane.cli.ops.logs import logs
from twolane.cli.ops.pages import pages
from twolane.cli.ops.requests import requests
from twolane.cli.ops.scale import scale
from twolane.cli.ops.scaler import scaler
from twolane.cli.ops.top import top
from twolane.cli.plan import plan
from twolane.cli.rollout import rollout
from twolane.cli.status import status
from twolane.cli.up import up
from twolane.errors import (
    CancelledError,
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    PermissionDeniedError,
    PreconditionError,
    TwolaneError,
    UnauthenticatedError,
    UnavailableError,
    UnknownModelError,
)

EXIT_CODES: list[tuple[type[TwolaneError], int]] = [
    (InvalidRequestError, 2),
    (UnknownModelError, 2),
    (UnauthenticatedError, 2),
    (PermissionDeniedError, 2),
    (PreconditionError, 2),
    (UnavailableError, 3),
    (OverloadedError, 3),
    (DeadlineError, 4),
    (CancelledError, 130),
    (NotProvenError, 5),
    (TwolaneError, 1),
]
# Of a file or folder that the command line names; whatever else fails is no fault of who typed it.
_NAMED_WRONGLY = (
    FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError,
)  # fmt: skip
_NO_NAMES = (errno.ENAMETOOLONG, errno.ELOOP)  # as those above, without classes of their own


class App(OnFullDisks, click.Group):
    """Turns a `TwolaneError` into a line on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except TwolaneError as error:
            complain(describe(error))
            ctx.exit(next(code for kind, code in EXIT_CODES if isinstance(error, kind)))
        except KeyboardInterrupt:
            click.echo(err=True)
            ctx.exit(130)
        except click.Abort as no:  # or Ctrl-C, or the end of input, behind the question
            is_unanswered = no.__context__ is not None
            click.echo("\n" * is_unanswered + "Nothing is done.", err=True)
            ctx.exit(130)
        except BrokenPipeError:  # `twolane … | head`: the reader has closed the pipe
            sys.stderr.close()
            ctx.exit(1)
        except UnicodeEncodeError as error:
            if error.encoding != "utf-8":
                raise
            complain("an argument or input is not UTF-8")
            ctx.exit(2)
        except OSError as error:
            is_named_wrongly = isinstance(error, _NAMED_WRONGLY) or error.errno in _NO_NAMES
            if not is_named_wrongly:
                tell_of_the_disk(error)
            if error.filename is None:
                raise
            complain(f"{error.filename}: {error.strerror}")
            ctx.exit(2)


def describe(error: TwolaneError) -> str:
    """The message, with a hint if the error has one."""
    if isinstance(error, OverloadedError):
        return str(error)
    if isinstance(error, UnknownModelError):
        return f"{error.message} (`twolane models` lists what is served)"
    return error.message


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def app() -> None:
    """Serve large language models on two pools of workers, and use them."""


for command in (
    up, generate, chat, status, top, console, requests, events, pages, logs, bundle, models, drain,
    fence, doctor, check, config, kill, flip, scale, scaler, rollout, cordon, uncordon, drain_node,
    down, plan, auth, certs, context, completion,
):  # fmt: skip
    app.add_command(command)
show_examples(app)


def run() -> None:
    """Parse `sys.argv`, run the command, and exit."""
    app(prog_name="twolane")
