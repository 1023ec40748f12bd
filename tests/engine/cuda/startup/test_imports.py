"""Byte code of a package whose installation has none is kept elsewhere, so it is compiled once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from twolane.engine.cuda.startup import imports
from twolane.engine.cuda.startup.imports import BYTE_CODE, triton_cache

PACKAGE = "much_source"
KEEP = (
    f"from twolane.engine.cuda.startup.imports import keep_byte_code; keep_byte_code('{PACKAGE}')"
)
NOBODYS = "import os; os.access = lambda path, mode: 'site' not in str(path); "


def start(site: Path, cache: Path, *options: str, first: str = "") -> str:
    """What a process prints that imports the package of `site`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= {"PYTHONPATH": os.pathsep.join([str(site), *sys.path]), "TRITON_CACHE_DIR": str(cache)}
    code = f"{first}{KEEP}; import {PACKAGE}; print({PACKAGE}.VALUE)"
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        check=True, capture_output=True, text=True, env=env, timeout=60,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site" / PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("VALUE = 1\n")
    return folder.parent


def compiled(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"**/{PACKAGE}/**/__init__.*.pyc"))


@pytest.mark.parametrize(("options", "first"), [(["-B"], ""), ([], NOBODYS)])
def test_what_is_not_written_beside_its_source_is_kept_and_read_again(
    tmp_path: Path, site: Path, options: list[str], first: str
) -> None:
    assert start(site, tmp_path / "cache", *options, first=first) == "1"
    assert not compiled(site)
    (once,) = compiled(tmp_path / "cache" / BYTE_CODE)
    time = once.stat().st_mtime_ns
    assert start(site, tmp_path / "cache", *options, first=first) == "1"
    assert compiled(tmp_path / "cache") == [once]
    assert once.stat().st_mtime_ns == time  # a second process compiles nothing


def test_byte_code_that_python_keeps_itself_stays_where_it_is(tmp_path: Path, site: Path) -> None:
    start(site, tmp_path / "cache")
    assert compiled(site)
    start(site, tmp_path / "cache", "-B")  # and is read from there
    assert not (tmp_path / "cache").exists()


def test_another_installation_with_the_same_times_and_sizes_is_compiled_anew(
    tmp_path: Path, site: Path
) -> None:
    source = site / PACKAGE / "__init__.py"
    for value in "12":
        source.unlink()
        source.write_text(f"VALUE = {value}\n")
        os.utime(source, (0, 0))
        assert start(site, tmp_path / "cache", "-B") == value


def test_where_the_cache_cannot_be_written_what_others_installed_is_still_read(
    tmp_path: Path, site: Path
) -> None:
    (tmp_path / "cache").write_text("no folder")
    where = f"import sys; {KEEP}; assert sys.pycache_prefix is None; "
    assert start(site, tmp_path / "cache", "-B", first=where) == "1"


def test_a_folder_of_the_users_own_choice_is_left_alone(tmp_path: Path, site: Path) -> None:
    own = tmp_path / "own"
    start(site, tmp_path / "cache", "-X", f"pycache_prefix={own}")
    assert compiled(own)
    assert not (tmp_path / "cache").exists()


def test_a_package_that_is_not_there_is_no_error() -> None:
    imports.keep_byte_code(PACKAGE)
    assert sys.pycache_prefix is None


def test_an_engine_keeps_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(Exception):
        pass

    def keep(package: str) -> None:
        raise Asked(package)

    monkeypatch.setattr(imports, "keep_byte_code", keep)
    with pytest.raises(Asked, match="torch"):
        imports.import_engine()


@pytest.mark.parametrize("variables", [{}, {"TRITON_HOME": "/a"}, {"TRITON_CACHE_DIR": "/b"}])
def test_the_cache_is_where_triton_has_it(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = pytest.importorskip("triton.knobs")
    for name in ("TRITON_HOME", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert os.path.normpath(triton_cache()) == os.path.normpath(knobs.cache_knobs().dir)
