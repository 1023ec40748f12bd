"""Byte code of a package whose installation has none is kept elsewhere, so it is compiled once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGE = "much_source"
START = f"""
import sys
from pathlib import Path
from twolane.engine.cuda.startup.imports import keep_byte_code
keep_byte_code({PACKAGE!r}, Path(sys.argv[1]))
import {PACKAGE}
"""


def start(site: Path, kept: Path, *options: str) -> None:
    """A process that imports the package of `site`."""
    path = os.pathsep.join([str(site), *sys.path])
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [sys.executable, *options, "-c", START, str(kept)]
    subprocess.run(command, check=True, env=env | {"PYTHONPATH": path}, timeout=60)


def site_packages(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    (site / PACKAGE).mkdir(parents=True)
    (site / PACKAGE / "__init__.py").write_text("VALUE = 1\n")
    return site


def compiled(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"**/{PACKAGE}/**/__init__.*.pyc"))


def test_what_is_not_to_be_written_beside_its_source_is_kept_and_read_again(tmp_path: Path) -> None:
    site, kept = site_packages(tmp_path), tmp_path / "kept"
    start(site, kept, "-B")
    assert not compiled(site)
    (once,) = compiled(kept)
    first = once.stat().st_mtime_ns
    start(site, kept, "-B")
    assert once.stat().st_mtime_ns == first  # a second process compiles nothing


def test_byte_code_that_python_keeps_itself_stays_where_it_is(tmp_path: Path) -> None:
    site, kept = site_packages(tmp_path), tmp_path / "kept"
    start(site, kept)
    assert compiled(site)
    start(site, kept, "-B")  # and is read from there
    assert not kept.exists()


def test_a_folder_of_the_users_own_choice_is_left_alone(tmp_path: Path) -> None:
    site, kept, own = site_packages(tmp_path), tmp_path / "kept", tmp_path / "own"
    start(site, kept, "-X", f"pycache_prefix={own}")
    assert compiled(own)
    assert not kept.exists()


def test_a_package_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    empty = tmp_path / "site"
    empty.mkdir()
    code = START.replace(f"import {PACKAGE}", "assert sys.pycache_prefix is None")
    command = [sys.executable, "-B", "-c", code, str(tmp_path / "kept")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, check=True, env=env, timeout=60)
