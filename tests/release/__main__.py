"""`make release-check`: build wheel and sdist into dist/, and look whether they can be released.

Exits with 1 and what is wrong. In GitHub's workflow of a tag, the tag is the version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.release.contents import sdist_problems, wheel_problems
from tests.release.licences import licences, page
from twolane import __version__

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
# Of the repository alone.
LEFT_OUT = (".ci", ".github", ".gitignore")


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    wheel, sdist = build(ROOT, "wheel"), build(ROOT, "sdist")
    found = licences()
    (DIST / "licences.md").write_text(page(found, __version__), encoding="utf-8")
    problems = [
        *version_problems(os.environ.get("GITHUB_REF_NAME", "")),
        *(f"{wheel.name}: {text}" for text in wheel_problems(sizes_of(wheel), tracked())),
        *(f"{sdist.name}: {text}" for text in sdist_problems(sizes_of(sdist), tracked(), LEFT_OUT)),
        *rebuilt_problems(wheel, sdist),
        *installed_problems(wheel),
        *(each.problem for each in found if each.problem),
    ]
    for path in sorted(DIST.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e6:.1f} MB")
    print(f"{len(found)} packages come along: dist/licences.md")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def build(tree: Path, kind: str, folder: Path = DIST) -> Path:
    """Without network: the backend is installed here."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (built,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


def tracked() -> set[str]:
    """The files that git has here, and links to files, but no links to folders."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


def sizes_of(built: Path) -> dict[str, int]:
    """Of the files in a wheel, or in an sdist, without the folder that holds all of an sdist."""
    if built.suffix == ".whl":
        with zipfile.ZipFile(built) as archive:
            return {each.filename: each.file_size for each in archive.infolist()}
    with tarfile.open(built) as archive:
        return {each.name.partition("/")[2]: each.size for each in archive if not each.isdir()}


def version_problems(ref: str) -> Iterator[str]:
    """`ref`: the branch or tag that is built; a tag of a version begins with v."""
    log = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    (latest, *_) = re.findall(r"^## (\d\S*)", log, re.MULTILINE)
    if latest != __version__:
        yield f"twolane is {__version__}, the latest version of docs/changelog.md {latest}"
    if re.match(r"v\d", ref) and ref != f"v{__version__}":
        yield f"the tag is {ref}, twolane is {__version__}"


def rebuilt_problems(wheel: Path, sdist: Path) -> Iterator[str]:
    """The wheel that an sdist makes is the wheel of the tree."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (tree,) = Path(folder).iterdir()
        other = sizes_of(build(tree, "wheel", tree / "dist"))
    differ = {name for name, _ in other.items() ^ sizes_of(wheel).items()}
    differ = {name for name in differ if not name.endswith("RECORD")}
    yield from (f"{name} differs in the wheel that the sdist makes" for name in sorted(differ))


def installed_problems(wheel: Path) -> Iterator[str]:
    """What is unpacked from the wheel runs, and is that version."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        command = [sys.executable, "-m", "twolane.cli", "--version"]
        told = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
    if told.stdout != f"twolane, version {__version__}\n":
        yield f"{wheel.name} says {told.stdout + told.stderr!r}"


if __name__ == "__main__":
    sys.exit(main())
