"""What ships for systemd and GitHub does what it says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

from tests.ports import free_ports
from twolane import __version__

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "twolane-agent.service"
PYTHON = "/opt/twolane/bin/python"


def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(UNIT)
    return parser


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text().replace(PYTHON, sys.executable))
    ran = subprocess.run(
        ["systemd-analyze", "verify", str(here)], capture_output=True, text=True, check=False
    )
    ours = [line for line in ran.stderr.splitlines() if UNIT.name in line]
    assert (ran.returncode, ours) == (0, [])


def test_agent_starts_and_stops_as_the_unit_says(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    service = unit()["Service"]
    options = f"--host-name node-a --listen 127.0.0.1:{port} --secret-file {tmp_path / 'secret'}"
    (tmp_path / "secret").write_text("1" * 64)
    (tmp_path / "secret").chmod(0o600)
    command = service["ExecStart"].replace(PYTHON, sys.executable)
    command = command.replace("/var/lib/twolane", str(tmp_path / "state"))
    words = shlex.split(command.replace("$TWOLANE_AGENT_OPTIONS", options))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        said = agent.stdout.readline()
        assert str(port) in said, said
        agent.send_signal(signal.Signals[service["KillSignal"]])
        assert agent.wait(timeout=float(service["TimeoutStopSec"])) == 0


def test_workers_outlive_their_agents_service() -> None:
    assert unit()["Service"]["KillMode"] == "process"


def test_github_runs_what_ci_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yaml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_latest_version_of_the_changelog_is_the_packages() -> None:
    log = (ROOT / "docs" / "changelog.md").read_text()
    versions = re.findall(r"^## (\d\S*)", log, re.MULTILINE)
    assert versions[0] == __version__
    assert versions == sorted(set(versions), reverse=True)


def test_the_chart_and_images_have_the_packages_version() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "chart" / "twolane" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    compose = yaml.safe_load((ROOT / "deploy" / "docker" / "compose.yaml").read_text())
    tags = [its["image"].partition(":")[2] for its in compose["services"].values()]
    assert {tag.removesuffix("-cpu") for tag in tags} == {__version__}
    for path in (ROOT / "deploy" / "docker" / "Dockerfile", ROOT / "docs" / "kubernetes.md"):
        named = re.findall(r"twolane/(?:router|worker):(\S+)", path.read_text())
        assert named, path
        assert {*named} == {__version__}, path
