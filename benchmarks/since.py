"""What has changed since each saved result was measured.

    python -m benchmarks.since [NAME …]

A result lists the folders and files that it depends on (`depends_on.toml`), a "!" before those in
them that it does not. It is current if all of them are as they were at its commit, but for comments
and docstrings. Exits with 1 if one of those that are named is not.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from benchmarks.machine import REPOSITORY
from benchmarks.results import RESULTS
from twolane.cli.rows import Rows


@dataclass(frozen=True, slots=True)
class Since:
    """A saved result, and how many of the files that it depends on differ since, those that differ
    only in comments and docstrings included; 0: no other does; None: its commit is not an ancestor
    of the present one. `dirty`: it was measured with uncommitted changes."""

    name: str
    date: str
    commit: str
    n_changed: int | None
    dirty: bool

    @property
    def is_current(self) -> bool:
        return self.n_changed == 0 and not self.dirty

    def in_words(self) -> str:
        if self.n_changed is None:
            return "commit unknown"
        if self.dirty:
            return "of uncommitted code"
        return f"{self.n_changed} files changed" if self.n_changed else "current"


def since(path: Path, repository: Path = REPOSITORY) -> Since:
    """Of the result at that path."""
    document = json.loads(path.read_text())
    commit = document["commit"] or ""
    paths = [f":{its}" if its.startswith("!") else its for its in document["depends_on"]]
    changed = None
    if _git(repository, "merge-base", "--is-ancestor", commit, "HEAD") is not None:
        changed = _git(repository, "diff", "--name-only", commit, "HEAD", "--", *paths)
    n_changed = None
    if changed is not None:
        names = changed.splitlines()
        n_changed = len(names) if any(_differs(repository, commit, name) for name in names) else 0
    date = document["date"][:10]
    return Since(path.stem, date, commit[:8], n_changed, dirty=bool(document.get("dirty")))


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
def main(names: Sequence[str]) -> None:
    if _git(REPOSITORY, "rev-parse", "HEAD") is None:
        raise click.ClickException(f"{REPOSITORY} is no git checkout")
    unknown = [name for name in names if not (RESULTS / f"{name}.json").is_file()]
    if unknown:
        raise click.ClickException(f"there is no saved result {', '.join(unknown)}")
    chosen = sorted(names) or sorted(path.stem for path in RESULTS.glob("*.json"))
    rows = Rows(("result", "measured", "commit", "since then"), ())
    found = [since(RESULTS / f"{name}.json") for name in chosen]
    for its in found:
        rows.add_row(its.name, its.date, its.commit, its.in_words())
    Console().print(rows)
    if names and not all(its.is_current for its in found):
        sys.exit(1)


def _differs(repository: Path, commit: str, name: str) -> bool:
    """Whether that file has changed since, in more than comments and docstrings."""
    if not name.endswith(".py"):
        return True
    before, now = (_git(repository, "show", f"{at}:{name}") for at in (commit, "HEAD"))
    return before is None or now is None or _code(before) != _code(now)


def _code(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
    return ast.dump(tree)


def _git(repository: Path, *command: str) -> str | None:
    """What it prints; None if it fails."""
    done = subprocess.run(
        ["git", *command], cwd=repository, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    main()
