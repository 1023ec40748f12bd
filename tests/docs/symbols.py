"""Finds what a document names as `folder/file.py:Symbol`, without importing anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PROTO = re.compile(r"^\s*(?:message|service|enum) (\w+)", re.MULTILINE)


def has_symbol(path: str, symbol: str) -> bool:
    """Whether the file is there and defines it at its top, or in a class (`Class.method`)."""
    return (ROOT / path).is_file() and (not symbol or symbol in _symbols(path))


@cache
def _symbols(path: str) -> frozenset[str]:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".proto"):
        return frozenset(_PROTO.findall(text))
    return frozenset(_defined(ast.parse(text).body))


def _defined(body: Iterable[ast.stmt], prefix: str = "") -> Iterable[str]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
            case ast.ClassDef(name=name, body=inside):
                yield prefix + name
                yield from _defined(inside, f"{prefix}{name}.")
            case ast.Assign(targets=targets):
                yield from (prefix + each.id for each in targets if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name
