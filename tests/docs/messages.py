"""The texts that the code may show: every string, with … in place of the values.

f"no agent answers at {host}" is "no agent answers at …", and so is "no agent answers at %s".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "twolane", "router", "worker", "prefill_worker", "decode_worker", "kvtransfer", "engine",
    "deploy",
)  # fmt: skip
_FORMAT = re.compile(r"%(?:\.\d)?[sdgfr]")


@cache
def messages() -> frozenset[str]:
    """Of all packages that are installed."""
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return frozenset(
        text
        for path in paths
        if "v1" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (text := _text(node)) is not None
    )


def is_said(quoted: str) -> bool:
    """Whether the text is one of those, or a part of one."""
    return any(quoted in text for text in messages())


def texts_of(path: Path, function: str) -> Iterator[str]:
    """The third argument of each call of that function, if it is a text, and what `text` is set
    to."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[_, _, value, *_]) if name == function:
                text = _text(value)
            case ast.Assign(targets=[ast.Name(id="text")], value=value):
                text = _text(value)
            case _:
                continue
        if text is not None:
            yield text


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(value.value) if isinstance(value, ast.Constant) else "…" for value in node.values
        )
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _FORMAT.sub("…", node.value)
    return None
