"""The file for Docker Compose: its commands are ours, and together they serve."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.agent.agent_cluster import wait_until
from tests.deploy.chart.test_commands import unknown
from tests.deploy.images.dockerfile import DOCKER, TARGETS, stages
from tests.ports import free_ports
from twolane.deploy.__main__ import main as deploy

COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def test_every_service_runs_a_command_of_ours_in_an_image_of_ours() -> None:
    for name, its in SERVICES.items():
        assert its["command"][:3] == ["python", "-m", "twolane.deploy"], name
        assert unknown(deploy, its["command"][3:]) == "", name
        assert its["build"]["target"] in TARGETS
        assert its["build"]["target"] in stages()
        context = (DOCKER / its["build"]["context"]).resolve()
        assert (context / its["build"]["dockerfile"]).is_file()


def test_every_service_is_confined() -> None:
    for name, its in SERVICES.items():
        assert its["read_only"] is True, name
        assert its["cap_drop"] == ["ALL"], name
        assert its["security_opt"] == ["no-new-privileges:true"], name
        assert its["mem_limit"], name
        assert "privileged" not in its, name
        assert all(port.startswith("127.0.0.1:") for port in its.get("ports", ())), name
    volumes = {volume.partition(":")[0] for its in SERVICES.values() for volume in its["volumes"]}
    assert volumes == {*COMPOSE["volumes"]}


@pytest.fixture
def home() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="tw-")  # short: paths of sockets have 107 bytes
    yield folder
    shutil.rmtree(folder)


def test_its_services_answer(home: str) -> None:
    """With ports of this machine that are free, and the fake engine."""
    door, http, worker_port, metrics = free_ports(4)
    places = {
        "--router=router:7201": f"--router=127.0.0.1:{worker_port}",
        "--metrics-port=9100": f"--metrics-port={metrics}",
    }
    environment = os.environ | {"HOME": home, "TMPDIR": home}
    running = []
    try:
        for name, its in SERVICES.items():
            words = [places.get(word, word) for word in its["command"][3:]]
            words = [f"--advertise-host={'127.0.0.1'}" if "--advertise" in w else w for w in words]
            if name == "router":
                words += [f"--port={door}", f"--http-port={http}", f"--worker-port={worker_port}"]
            else:
                words += ["--engine=fake"]
            words = ["127.0.0.1".join(word.split("0.0.0.0")) for word in words]
            command = [sys.executable, "-m", "twolane.deploy", *words]
            running.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
        health = SERVICES["router"]["healthcheck"]["test"][3].replace("7202", str(http))
        python = [sys.executable, "-c", health]
        wait_until(
            lambda: subprocess.run(python, stderr=subprocess.DEVNULL, check=False).returncode == 0
        )
        body = json.dumps({"model": "bundled", "prompt": "Once", "max_tokens": 3}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{http}/v1/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 3
    finally:
        for process in running:
            process.kill()
            process.wait()
