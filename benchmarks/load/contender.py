"""What is measured: commands that start servers, or the addresses of running ones.

A file of contenders is TOML, with one table each:

    [split]
    commands = ["$python -m twolane.deploy.up --prefill 1 --decode 1 --port $port0"]
    endpoints = ["127.0.0.1:$port0"]
    ready = '"ready"'

    commands          started at once, without a shell; none: the servers run already
    endpoints         requests go to them in turn: HOST:PORT gRPC, http://HOST:PORT OpenAI-style
    ready             text in every command's output once it serves (default: do not wait)
    start_timeout_s, stop_timeout_s
    vocab_size, max_context_tokens      if the server does not report them

`$port0` to `$port9` are free ports, `$python` is this interpreter; others are set by `--set`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from typing import Any, TypeVar

import click

from benchmarks.load.target import Told

_Command = TypeVar("_Command", bound=Callable[..., Any])


class ContenderError(ValueError):
    """The file, or a `--target`, is not valid; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """See the module's docstring."""

    name: str
    endpoints: tuple[str, ...]
    commands: tuple[str, ...] = ()
    ready: str = ""
    start_timeout_s: float = 300.0
    stop_timeout_s: float = 30.0
    told: Told = field(default_factory=Told)
    values: Mapping[str, str] = field(default_factory=dict)  # of $NAMEs, by --set

    def fill_in(self, given: Mapping[str, str]) -> Contender:
        """A copy with $NAMEs replaced. Raises `ContenderError` for a name that has no value."""
        values = {**given, **self.values}
        try:
            return replace(
                self,
                commands=tuple(Template(text).substitute(values) for text in self.commands),
                endpoints=tuple(Template(text).substitute(values) for text in self.endpoints),
            )
        except (KeyError, ValueError) as error:
            raise ContenderError(f"{self.name}: no value for {error}") from error


def read_contenders(path: Path) -> list[Contender]:
    """In the file's order. Raises `ContenderError`."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ContenderError(f"{path}: {error}") from error
    return [_read_one(path, name, table) for name, table in tables.items()]


def parse_targets(texts: Sequence[str]) -> list[Contender]:
    """NAME=ENDPOINT[,ENDPOINT…] each. Raises `click.BadParameter`."""
    named = [text.partition("=") for text in texts]
    found = [Contender(name=name, endpoints=tuple(to.split(","))) for name, _, to in named]
    if not all(one.name and all(one.endpoints) for one in found):
        raise click.BadParameter(
            "a target is NAME=HOST:PORT or NAME=http://HOST:PORT", param_hint="--target"
        )
    if len({one.name for one in found}) < len(found):
        raise click.BadParameter("two targets have the same name", param_hint="--target")
    return found


def choose(
    files: Sequence[Path],
    only: Sequence[str],
    targets: Sequence[str],
    settings: Sequence[str] = (),
) -> list[Contender]:
    """Those of the files, or `only` some of them, then the targets. There is one, and no two have
    the same name. Raises `ContenderError`, `click.UsageError`."""
    values = dict(text.partition("=")[::2] for text in settings)
    found = [one for path in files for one in read_contenders(path)]
    if only:
        missing = {*only} - {one.name for one in found}
        if missing:
            raise click.BadParameter(f"not in the files: {missing}", param_hint="--only")
        found = [one for one in found if one.name in only]
    found += parse_targets(targets)
    found = [replace(one, values=values) for one in found]
    if not found:
        raise click.UsageError("nothing to measure: give --contenders or --target")
    if len({one.name for one in found}) < len(found):
        raise click.UsageError("two contenders have the same name")
    return found


def contender_options(command: _Command) -> _Command:
    """The options that `choose` wants, as files, only, targets and settings."""
    path = click.Path(path_type=Path)
    for option in (
        click.option("--set", "settings", multiple=True, help="NAME=VALUE of a file's $NAME."),
        click.option("--target", "targets", multiple=True, help="NAME=ENDPOINT; repeat."),
        click.option("--only", multiple=True, help="These contenders of the files; repeat."),
        click.option("--contenders", "files", multiple=True, type=path, help="TOML; repeat."),
    ):
        command = option(command)
    return command


def _read_one(path: Path, name: str, table: Any) -> Contender:
    if not isinstance(table, dict):
        raise ContenderError(f"{path}: {name} is not a table")
    told = {key: table.pop(key) for key in ("vocab_size", "max_context_tokens") if key in table}
    for key in ("commands", "endpoints"):
        table[key] = tuple(table.get(key, ()))
    if not table["endpoints"]:
        raise ContenderError(f"{path}: {name} has no endpoints")
    try:
        return Contender(name=name, told=Told(**told), **table)
    except TypeError as error:
        raise ContenderError(f"{path}: {name}: {error}") from error
