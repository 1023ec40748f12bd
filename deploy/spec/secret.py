"""The cluster's secret for a process that is started by hand. `twolane up` generates one
instead."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from twolane.deploy.errors import StartError
from twolane.rpc.secret import MIN_SECRET_CHARS, new_secret

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def secret_option(default: str) -> Callable[[CommandT], CommandT]:
    return click.option(
        "--secret-file",
        type=click.Path(path_type=Path),
        envvar="TWOLANE_SECRET_FILE",
        show_envvar=True,
        help="Holds what routers and workers of one cluster show each other.  "
        f"[default: {default}]",
    )


def read_secret(path: Path) -> str:
    """Read the secret. Raises `StartError` if the file cannot be read or holds no secret."""
    try:
        secret = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise StartError(f"no secret can be read from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StartError(f"no secret can be read from {path}: it is not ASCII") from error
    if len(secret) < MIN_SECRET_CHARS or not secret.isprintable() or " " in secret:
        raise StartError(
            f"{path} holds no secret: one word of at least {MIN_SECRET_CHARS} characters is "
            "wanted, like that of `openssl rand -hex 32`"
        )
    return secret


def secret_by_hand(given: Path | None) -> str:
    """The secret in the file `given`, or in the user's own file, which is created if it is missing
    and which only the user can read: the processes that a user starts by hand on one machine share
    it. Raises `StartError`."""
    if given is not None:
        return read_secret(given)
    path = Path.home() / ".twolane" / "secret"
    try:
        _make(path)
    except OSError as error:
        raise StartError(f"{path} cannot be made ({error}): name a --secret-file") from error
    return read_secret(path)


def _make(path: Path) -> None:
    """Create the file unless it exists. Of several processes that do so at once, one wins."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_name(f"secret-{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(new_secret() + "\n")
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()
