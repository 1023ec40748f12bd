"""Folders hold few enough modules to be read as a list, and each module has one name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "router", "worker", "prefill_worker", "decode_worker", "kvtransfer", "engine", "deploy",
)  # fmt: skip
MOST_MODULES = 20


def test_no_folder_holds_more_than_20_modules() -> None:
    found: Counter[str] = Counter()
    for top in ("twolane", "benchmarks", *PACKAGES):
        for path in (ROOT / top).rglob("*.py"):
            if path.name != "__init__.py" and "bundled" not in path.parts:
                found[str(path.parent.relative_to(ROOT))] += 1
    assert {folder: n for folder, n in found.items() if n > MOST_MODULES} == {}


def test_every_package_is_linked_into_twolane() -> None:
    links = {path.name: str(path.readlink()) for path in (ROOT / "twolane").iterdir()
             if path.is_symlink()}  # fmt: skip
    assert links == {name: f"../{name}" for name in PACKAGES}


def test_nothing_imports_a_package_by_its_folder() -> None:
    wrong = []
    for top in ("twolane", "benchmarks", "tests", *PACKAGES):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
                wrong += [(str(path), n) for n in names if n.partition(".")[0] in PACKAGES]
    assert wrong == []


@pytest.mark.parametrize(
    "module", ["twolane.deploy.up", "twolane.deploy.demo", "twolane.deploy.__main__"]
)
def test_no_module_is_loaded_under_two_names(module: str) -> None:
    code = (
        f"import sys, os, {module}\n"
        "for name, module in list(sys.modules.items()):\n"
        "    file = getattr(module, '__file__', None)\n"
        "    if file: print(name, os.path.realpath(file), sep='\\t')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [line.split("\t") for line in run.stdout.splitlines()]
    assert not {name for name, _ in lines if name.partition(".")[0] in PACKAGES}
    ours = Counter(file for name, file in lines if name.partition(".")[0] == "twolane")
    assert ours
    assert {file for file, n in ours.items() if n > 1} == set()
