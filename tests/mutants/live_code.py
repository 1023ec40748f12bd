"""Gives live functions other code, so that a mutant needs neither a file nor an import of its own.

For modules that are imported already, and what stands inside functions: a function keeps its
identity, whoever holds it, and runs what the mutated source has in its place.
"""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType


class LiveCode:
    """The functions of all modules below `root`, as they were when this was made."""

    def __init__(self, root: Path) -> None:
        self._of = defaultdict[str, list[FunctionType]](list)
        functions = [one for one in gc.get_objects() if type(one) is FunctionType]
        for one in functions:  # twolane/kvtransfer is a link to kvtransfer
            file = _real(one.__code__.co_filename)
            if file.startswith(f"{root}/"):
                self._of[file].append(one)

    def change(self, path: Path, source: str) -> None:
        """Let the functions of `path` run `source`, whose lines are where they were.

        Raises ValueError when that changes nothing: the module is not imported, or what differs is
        not inside a function.
        """
        codes = {_place(code): code for code in _codes(compile(source, str(path), "exec"))}
        n_changed = 0
        for function in self._of[str(path)]:
            code = codes.get(_place(function.__code__), function.__code__)
            n_changed += code != function.__code__
            function.__code__ = code
        if not n_changed:
            raise ValueError(f"no function of {path} differs, or it is not imported")


@cache
def _real(file: str) -> str:
    return os.path.realpath(file)


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
