"""The images have what they need and nothing that they should not, as far as can be seen without
building them; `test_built.py` carries out the steps."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.deploy.chart.rendered import CHART
from tests.deploy.chart.test_commands import unknown
from tests.deploy.images.dockerfile import (
    DOCKER,
    ROOT,
    TARGETS,
    command,
    environment,
    lineage,
    stages,
)
from twolane.deploy.__main__ import main as deploy

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NO_ROUTERS = ("torch", "ray", "safetensors", "triton", "transformers", "matplotlib")


def test_there_are_these_images() -> None:
    known = stages()
    assert {*TARGETS} <= {*known}
    assert {its.base for its in known.values()} - {*known} == {"python:${PYTHON}-slim-bookworm"}
    values = yaml.safe_load((CHART / "values.yaml").read_text())["image"]
    assert {its["repository"] for its in values.values()} == {"twolane/router", "twolane/worker"}


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_a_plain_python_and_our_folder(target: str) -> None:
    """What is installed while it is built, a compiler too, stays in the other stage."""
    base, its = lineage(target)
    assert base.name == "base"
    assert its.texts("RUN") == []
    assert its.texts("COPY") == [f"--from={target}-built /opt/twolane /opt/twolane"]
    (run,) = base.texts("RUN")
    assert "install" not in run
    assert [text for stage in (base, its) for text in stage.texts("USER")] == ["10001:10001"]
    writable = environment(target)["HOME"], environment(target)["TRITON_CACHE_DIR"]
    for path in writable:
        assert any(path.startswith(its) for its in re.findall(r"/var/\S+/twolane", run))


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_installs_pinned_packages_of_known_extras(target: str) -> None:
    (install,) = [text for text in stages()[f"{target}-built"].texts("RUN") if " pip " in text]
    words = shlex.split(install)
    assert words[words.index("--constraint") + 1] == "constraints.txt"
    (extras,) = re.findall(r"\.\[(.+?)\]", install)
    known = PROJECT["project"]["optional-dependencies"]
    assert {*extras.split(",")} <= {*known}
    assert ("router" in extras) == (target == "router")
    assert "twolane[router]" in known["serve"]


def test_nothing_secret_is_sent_to_the_builder() -> None:
    lines = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    admitted = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    folders = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert admitted == {*folders, "pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    last = max(i for i, rule in enumerate(rules) if rule.startswith("!"))
    assert {"**/*.key", "**/*.pem", "**/*.crt", "**/.env*"} <= {*rules[last + 1 :]}
    for text in (text for its in stages().values() for text in its.texts("ENV")):
        assert not re.search(r"token|secret|password|key", text, re.IGNORECASE)


@pytest.mark.parametrize("target", TARGETS)
def test_an_images_own_command_is_one(target: str) -> None:
    words = command(target)
    assert words[:3] == ["python", "-m", "twolane.deploy"]
    assert unknown(deploy, words[3:-1]) == ""


BLOCKED = f"""
import importlib.abc, runpy, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NO_ROUTERS}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
sys.argv = ["deploy", *sys.argv[1:]]
runpy.run_module("twolane.deploy", run_name="__main__")
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["router", "--port=0", "--worker-port=0", "--http-port=0"],
        ["agent", "--listen=127.0.0.1:0", "--gpus="],
        ["controller", "--topology=cluster.yaml"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_the_image_for_routers_runs_needs_none_of_these(
    arguments: list[str], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("a" * 32)
    hosts = "[{name: a, agent: '127.0.0.1:1', seats: 2}]"
    pools = "[{role: both, device: cpu}]"
    (tmp_path / "cluster.yaml").write_text(f"launcher: agents\nhosts: {hosts}\npools: {pools}\n")
    if arguments[0] == "agent":
        arguments = [*arguments, f"--state-dir={tmp_path / 'state'}"]
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED, *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"TWOLANE_SECRET_FILE": str(tmp_path / "secret"), "HOME": str(tmp_path)},
    )
    assert process.stdout is not None
    line = process.stdout.readline()  # it serves, or waits for its agents
    process.kill()
    process.communicate()
    assert re.search(r" serves at 127\.0\.0\.1|no agent answers at 127\.0\.0\.1:1", line), line


def test_a_script_returns_tritons_driver_in_place_of_a_compiler(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    made, driver = tmp_path / "made", tmp_path / "cuda_utils.cpython.so"
    build = [sys.executable, str(DOCKER / "build_triton_driver.py"), str(made)]
    subprocess.run(build, check=True)
    compiler = str(made / "cc")
    subprocess.run([compiler, "main.c", "-O3", "-o", str(driver), "-lcuda"], check=True)
    assert driver.read_bytes() == (made / "cuda_utils.so").read_bytes()
    assert b"PyInit_cuda_utils" in driver.read_bytes()
    assert b"libcuda.so.1" in driver.read_bytes()
    other = subprocess.run(
        [compiler, "other.c", "-o", "other.so"], capture_output=True, text=True, check=False
    )
    assert (other.returncode, "no C compiler" in other.stderr) == (1, True)
    assert environment("worker")["CC"] == "/opt/twolane/triton/cc"
    assert "build_triton_driver.py /opt/twolane/triton" in stages()["worker-built"].texts("RUN")[-1]
