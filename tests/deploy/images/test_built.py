"""The steps of the Dockerfile, carried out in overlays of this machine's own root: nothing here
pulls an image. Needs root, Debian's python3 with pip, and the package registries."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deploy.images.dockerfile import ROOT, command, environment, lineage, stages

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
SECRETS = re.compile(rb"-----BEGIN (EC |RSA |)PRIVATE KEY-----")


class Builder:
    """Carries out stages below `folder`, which is a tmpfs; a context manager that unmounts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._merged: dict[str, Path] = {}
        self._mount("-t", "tmpfs", "none", str(folder))
        self.context = folder / "context"
        self._fill_context()

    def close(self) -> None:
        self._stack.close()

    def built(self, name: str) -> Path:
        """The root of that stage, with all its steps done."""
        if name not in self._merged:
            stage = stages()[name]
            below = [] if stage.base.startswith("python:") else [self.built(stage.base)]
            lower = self.upper(stage.base) if below else Path("/")
            self._merged[name] = self._overlay(name, lower)
            for instruction, text in stage.steps:
                self._carry_out(name, instruction, text)
        return self._merged[name]

    def upper(self, name: str) -> Path:
        """What the stage has beyond this machine's root: those below it are copied in."""
        return self.folder / f"{name}-upper"

    def run(self, name: str, words: list[str], *, user: str, **env: str) -> str:
        """Output of a command in that stage. Raises CalledProcessError."""
        root = self.built(name)
        command = ["chroot", f"--userspec={user}", str(root), "/usr/bin/env", "-i"]
        command += [f"{key}={value}" for key, value in {**environment(name), **env}.items()]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def _mount(self, *arguments: str) -> None:
        subprocess.run(["mount", *arguments], check=True)
        self._stack.callback(subprocess.run, ["umount", "-l", arguments[-1]], check=False)

    def _overlay(self, name: str, lower: Path) -> Path:
        upper, work, merged = (self.folder / f"{name}-{kind}" for kind in ("upper", "work", "root"))
        for folder in (upper, work, merged):
            folder.mkdir()
        lowers = "/" if lower == Path("/") else f"{lower}:/"
        options = f"lowerdir={lowers},upperdir={upper},workdir={work}"
        self._mount("-t", "overlay", "overlay", "-o", options, str(merged))
        self._mount("--bind", "/dev", f"{merged}/dev")
        self._mount("-t", "proc", "proc", f"{merged}/proc")
        self._mount("-t", "tmpfs", "none", f"{merged}/tmp")
        return merged

    def _fill_context(self) -> None:
        """What git knows, less what the ignore file keeps out."""
        rules = (ROOT / "deploy/docker/Dockerfile.dockerignore").read_text().split()
        admitted = tuple(rule[1:] for rule in rules if rule.startswith("!"))
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        chosen = [path for path in listed if path.split("/")[0] in admitted]
        self.context.mkdir()
        subprocess.run(
            ["cp", "--parents", "--no-dereference", *chosen, str(self.context)],
            cwd=ROOT,
            check=True,
        )

    def _carry_out(self, name: str, instruction: str, text: str) -> None:
        root = self._merged[name]
        match instruction:
            case "COPY" if text == ". .":
                subprocess.run(["cp", "-a", f"{self.context}/.", f"{root}/src"], check=True)
            case "COPY":
                source, _, target = text.removeprefix("--from=").split(" ")
                built = self.built(source)
                parent = (root / target.removeprefix("/")).parent
                subprocess.run(["cp", "-a", f"{built}{target}", str(parent)], check=True)
            case "RUN":
                where = "/src" if any(s.name == "source" for s in lineage(name)) else "/"
                script = f"cd {where} && {text}"
                subprocess.run(
                    ["chroot", str(root), "/bin/sh", "-ec", script],
                    env={"PATH": PATH, "HOME": "/root", "TORCH_INDEX": "file:///none", **_pip()},
                    check=True,
                )
            case "WORKDIR":
                (root / text.removeprefix("/")).mkdir(parents=True, exist_ok=True)


def _pip() -> dict[str, str]:
    """How this machine reaches its registries."""
    return {key: value for key, value in os.environ.items() if key.startswith("PIP_")}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount overlays")
    made = Builder(tmp_path_factory.mktemp("images"))
    yield made
    made.close()


@pytest.mark.parametrize("target", ["router", "worker-cpu"])
def test_an_image_runs_and_holds_no_compiler_and_no_secret(builder: Builder, target: str) -> None:
    builder.built(target)
    shown = builder.run(target, command(target), user="10001:10001")
    assert "Usage: python -m twolane.deploy" in shown
    assert "twolane" in builder.run(target, ["twolane", "--version"], user="10001:10001")
    ours = builder.upper(target) / "opt" / "twolane"
    assert (ours / "bin" / "twolane").exists()
    for path in ours.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        assert path.name not in ("cc", "gcc", "clang", "ld", "as", "pip"), path
        assert not path.stat().st_mode & 0o6002, f"{path} is setuid, or anybody can write it"
        has_key = path.stat().st_size < 1 << 20 and SECRETS.search(path.read_bytes()) is not None
        is_theirs = "site-packages/twolane/" not in str(path) and ".py" in path.suffix
        is_nobody = path.name.startswith("nobody.")  # whose key is public
        assert not has_key or is_theirs or is_nobody, path


def test_the_image_for_routers_has_no_torch(builder: Builder) -> None:
    shown = builder.run(
        "router",
        [
            "python",
            "-c",
            "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('ray'))",
        ],
        user="10001:10001",
    )
    assert shown == "None None\n"


def test_the_image_for_workers_serves_the_bundled_model(builder: Builder) -> None:
    script = (
        "from twolane.testing import start_local\n"
        "with start_local(prefill=1, decode=1) as cluster, cluster.client() as ours:\n"
        "    print(len(ours.generate('Once', max_tokens=4, ignore_eos=True).tokens))\n"
    )
    assert (
        builder.run("worker-cpu", ["python", "-c", script], user="10001:10001").splitlines()[-1]
        == "4"
    )
