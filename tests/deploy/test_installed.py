"""What is installed from a wheel: all of it, only `twolane`, and it serves wherever the user is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.release.contents import in_wheel
from twolane.testing import start_local

pytest.importorskip("hatchling", reason="pip install hatchling: wheels are built without network")

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "router", "worker", "prefill_worker", "decode_worker", "kvtransfer", "engine", "deploy",
)  # fmt: skip
THEIRS = (*(f"{name}.py" for name in PACKAGES), "worker/__init__.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(checkout(tmp_path_factory.mktemp("tree")), "wheel")


def checkout(folder: Path) -> Path:
    """What git has of this tree, changes included."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def build(tree: Path, kind: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(tree / "dist")]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (built,) = (tree / "dist").glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


def names(built: Path) -> set[str]:
    with zipfile.ZipFile(built) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheels_from_a_tree_an_sdist_and_a_tree_without_links_are_the_same(
    wheel: Path, tmp_path: Path
) -> None:
    bare = checkout(tmp_path / "bare")
    for name in PACKAGES:
        (bare / "twolane" / name).unlink()
    with tarfile.open(build(checkout(tmp_path / "tree"), "sdist")) as archive:
        archive.extractall(tmp_path / "sdist", filter="data")
    (unpacked,) = (tmp_path / "sdist").iterdir()
    whole = names(wheel)
    assert names(build(bare, "wheel")) == whole
    assert names(build(unpacked, "wheel")) == whole
    assert {name.partition("/")[0] for name in whole} == {"twolane"}
    tracked = subprocess.run(
        ["git", "ls-files", "--", "twolane/*.py", *(f"{name}/*.py" for name in PACKAGES)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert {in_wheel(name) for name in tracked} - {""} <= whole
    bundled = {name for name in whole if name.startswith("twolane/deploy/bundled/")}
    ours = {name for name in bundled if "/model/" not in name}
    assert ours == {"twolane/deploy/bundled/__init__.py"}, "what trained the model is not installed"
    assert len(bundled) > len(ours)


@pytest.mark.parametrize("launcher", ["process", "ray"])
def test_an_installed_cluster_serves_beside_modules_of_the_same_names(
    launcher: str, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, here, pids = install(wheel, tmp_path), tmp_path / "here", tmp_path / "pids"
    for name in THEIRS:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("raise SystemExit('the module of somebody else')\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", str(site))
    with (
        start_local(launcher=launcher, engine="fake", prefill=1, decode=1) as cluster,
        cluster.client() as client,
    ):
        assert len(client.generate("hello", max_tokens=3, ignore_eos=True).tokens) == 3
        served = Path(f"/proc/{cluster.pid('prefill-0')}/cwd") if launcher == "process" else here
        assert served.resolve() == here
        processes = {str(cluster.pid(name)) for name in ("router-0", "prefill-0", "decode-0")}
    assert processes <= {path.name for path in pids.iterdir()}


def install(wheel: Path, folder: Path) -> Path:
    """Unpack the wheel. Each process that imports twolane from it leaves its id in folder/pids."""
    site, pids = folder / "site", folder / "pids"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    pids.mkdir()
    with (site / "twolane/__init__.py").open("a") as module:
        module.write(
            f"\nimport os, pathlib\npathlib.Path({str(pids)!r}, str(os.getpid())).touch()\n"
        )
    return site


FOUR = """
import importlib.abc, sys

class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in {"twolane", "grpc", "google", "grpc_status"}:
            return None
        if top in {"typing_extensions", "_cython_3_0_11", "cython"}:
            return None  # grpcio's own
        raise ModuleNotFoundError(f"{name} is none of the client's dependencies", name=name)

sys.meta_path.insert(0, Nothing())
import twolane
with twolane.Client(sys.argv[1]) as client:
    print(len(client.generate("hello", max_tokens=3, ignore_eos=True).tokens), twolane.__file__)
"""


def test_a_client_needs_the_four_dependencies_and_no_other(wheel: Path, tmp_path: Path) -> None:
    site = install(wheel, tmp_path)
    with start_local(engine="fake", colocated=1) as cluster:
        done = subprocess.run(
            [sys.executable, "-c", FOUR, cluster.endpoint],
            capture_output=True, text=True, check=False, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(site)},
        )  # fmt: skip
    assert done.stdout == f"3 {site / 'twolane/__init__.py'}\n", done.stderr
