"""The options of commands that save a result: what the result is called, the folder it goes to, and
the commit where this code is not a checkout of git."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks.results import RESULTS

_Command = TypeVar("_Command", bound=Callable[..., Any])
_NAME = "of the result, which is saved as NAME.json"
_FOLDER = "of the result; else benchmarks/results"
_COMMIT = "of this code, where it is not a checkout of git"


def result_options(default_name: str) -> Callable[[_Command], _Command]:
    """A command of click gets `name`, `folder` and `commit`, as `benchmarks.results.save` wants
    them."""

    def decorate(command: _Command) -> _Command:
        path = click.Path(path_type=Path)
        for option in (
            click.option("--commit", help=_COMMIT),
            click.option("--folder", type=path, default=RESULTS, show_default=False, help=_FOLDER),
            click.option("--name", default=default_name, show_default=True, help=_NAME),
        ):
            command = option(command)
        return command

    return decorate


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """A parser of argparse gets `folder` and `commit`."""
    parser.add_argument("--folder", type=Path, default=RESULTS, help=_FOLDER)
    parser.add_argument("--commit", help=_COMMIT)
