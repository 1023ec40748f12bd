"""The kernels that engine/kernels launches, collected from its source: what must have tests."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import twolane.engine.kernels

FOLDER = Path(twolane.engine.kernels.__file__).parent


@dataclass(frozen=True, slots=True)
class Jitted:
    """One function of a module that is compiled for the device."""

    module: str
    name: str
    decorator: str  # triton.jit or gluon.jit
    names: frozenset[str]  # that its body mentions

    @property
    def is_interpretable(self) -> bool:
        """Gluon and inline assembly have no interpreter: only their builds can be checked here."""
        return self.decorator == "triton.jit" and "inline_asm_elementwise" not in self.names


def entry_kernels() -> list[Jitted]:
    """Those that no other calls, and which therefore only a launch can reach."""
    called: set[tuple[str, str]] = set()
    found: list[Jitted] = []
    for path in sorted(FOLDER.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = _jitted(path.stem, tree)
        home = _imported(tree) | {f.name: path.stem for f in functions}
        called |= {(home[n], n) for f in functions for n in f.names & home.keys() - {f.name}}
        found += functions
    entries = [f for f in found if (f.module, f.name) not in called]
    assert len({f.name for f in entries}) == len(entries), "kernels need names of their own"
    return entries


def _jitted(module: str, tree: ast.Module) -> list[Jitted]:
    found: list[Jitted] = []
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            made_by = decorator.func if isinstance(decorator, ast.Call) else decorator
            if ast.unparse(made_by) in ("triton.jit", "gluon.jit"):
                names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
                found.append(Jitted(module, node.name, ast.unparse(made_by), frozenset(names)))
    return found


def _imported(tree: ast.Module) -> dict[str, str]:
    """name -> module of twolane.engine.kernels that it comes from."""
    return {
        alias.name: node.module.rpartition(".")[2]
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("twolane.engine.kernels.")
        for alias in node.names
        if node.module
    }
