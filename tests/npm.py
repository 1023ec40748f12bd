"""Packages of the npm registry, for tests that drive or ask somebody else's code."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def npm_packages(folder: Path) -> Path:
    """A directory with the packages that `folder` locks, installed once and kept. Skips the test
    where node or npm is missing."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    lock = folder / "package-lock.json"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twolane"
    name = folder.name.replace("_", "-")
    kept = caches / f"{name}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    if not kept.exists():
        caches.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=caches) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            for path in (lock, folder / "package.json"):
                shutil.copy(path, made)
            install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            subprocess.run(install, cwd=made, check=True, timeout=100)
            try:
                made.rename(kept)
            except OSError:
                assert kept.exists(), "another run was not first"
    return kept
