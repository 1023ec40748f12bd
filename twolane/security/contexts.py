"""Contexts: named clusters with the client's credentials for each, in the user's file.

current = "prod"                         ~/.config/twolane/config.toml

[contexts.prod]
endpoint = "gpu-a:7200"
admin_endpoint = "gpu-a:7210"             for operators and viewers
ca = "certs/ca.crt"                      paths are relative to the file's directory
cert = "certs/acme-alice.crt"
key = "certs/acme-alice.key"
token_command = "pass show twolane/prod" or api_key = "tl_…"
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from twolane.errors import InvalidRequestError

_FILES = ("ca", "cert", "key")
_MOST_LINKS = 40  # as many as Linux follows: opening a path with more fails
_CURRENT = re.compile(r"^[ \t]*current[ \t]*=[^\r\n]*", re.MULTILINE)
_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A cluster: its address and the client's credentials. Empty fields are unset."""

    endpoint: str = ""
    admin_endpoint: str = ""  # of operators: a router's --admin-port, or unix:PATH
    ca: str = ""
    cert: str = ""
    key: str = ""
    api_key: str = field(default="", repr=False)
    token_command: str = ""  # prints an API key


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contents of the file. `current` may be empty."""

    current: str
    named: dict[str, Context]

    def find(self, name: str, path: Path) -> Context:
        """The context of that name. Raises `InvalidRequestError` if there is none."""
        if name not in self.named:
            if not self.named:
                raise InvalidRequestError(f"there are no contexts: {path} names none")
            there = ", ".join(sorted(self.named))
            which = f"context {name!r}" if name else "current context"
            raise InvalidRequestError(f"{path} has no {which}; it has {there}")
        return self.named[name]


def read_contexts(path: Path) -> Contexts:
    """Read the file; a missing file has no contexts. Raises `InvalidRequestError`."""
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Contexts("", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error
    _refuse_unknown(path, "", value, {"current", "contexts"})
    current, named = value.get("current", ""), value.get("contexts", {})
    if not isinstance(current, str) or not isinstance(named, dict):
        raise InvalidRequestError(f"{path}: current is a name, contexts are tables")
    return Contexts(current, {name: _context(path, name, each) for name, each in named.items()})


def use_context(path: Path, name: str) -> None:
    """Make a context the current one; the rest of the file is kept, and a symbolic link to it.
    Raises `InvalidRequestError`, and then the file is as it was."""
    read_contexts(path).find(name, path)
    path = followed(path)
    text = path.read_bytes().decode()
    changed = _with_current(text, name)
    if _parsed(changed) != {**tomllib.loads(text), "current": name}:
        raise InvalidRequestError(
            f"{path} was not changed: write current = {_quoted(name)} in its first line yourself"
        )
    found = path.stat()
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8", newline="") as file:
            file.write(changed)
            if os.geteuid() == 0:
                os.fchown(handle, found.st_uid, found.st_gid)
            os.fchmod(handle, stat.S_IMODE(found.st_mode))
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def followed(path: Path) -> Path:
    """The file that a path leads to, if that is a symbolic link. Links in the folders before it are
    left to the system: what is below /proc/PID/root has no other path."""
    for _ in range(_MOST_LINKS):
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    return path


def _with_current(text: str, name: str) -> str:
    """The text, with another `current` before its first table."""
    line, table = f"current = {_quoted(name)}", _TABLE.search(text)
    head = text if table is None else text[: table.start()]
    changed, n = _CURRENT.subn(lambda _: line, head, count=1)
    return (changed if n else f"{line}\n{head}") + text[len(head) :]


def _quoted(name: str) -> str:
    """As a string of TOML: JSON's, which may hold the one control character DEL."""
    return json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _context(path: Path, name: str, value: Any) -> Context:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{path}: contexts.{name} must be a table")
    _refuse_unknown(path, f"contexts.{name}.", value, {each.name for each in fields(Context)})
    for key, said in value.items():
        if not isinstance(said, str):
            raise InvalidRequestError(f"{path}: contexts.{name}.{key} must be a string")
    if value.get("api_key") and value.get("token_command"):
        raise InvalidRequestError(
            f"{path}: contexts.{name} has an api_key and a token_command: take one"
        )
    files = {
        key: str(path.parent / Path(value[key]).expanduser()) for key in _FILES if key in value
    }
    return Context(**{**value, **{key: str(file) for key, file in files.items()}})


def _refuse_unknown(path: Path, place: str, value: dict[str, Any], known: set[str]) -> None:
    for key in value:
        if key not in known:
            raise InvalidRequestError(
                f"{path}: there is no {place}{key}; there are {', '.join(sorted(known))}"
            )
