"""What the chart renders, run as processes of this machine, answers requests. Pods have addresses
of the loopback, and ports are free ones."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import yaml

from tests.deploy.agent.agent_cluster import wait_until
from tests.deploy.chart.rendered import Manifest, render
from tests.ports import free_ports

VALUES: dict[str, Any] = {
    "tls": {"mode": "none"},
    "router": {"replicas": 1},
    "pools": [{"role": "prefill", "engine": "fake"}, {"role": "decode", "engine": "fake"}],
    "drainSeconds": 20,
}
_OURS = divmod(os.getpid() % 65025, 255)  # nobody else's addresses
PODS = {
    "llm-router-0": "127.10.{}.{}".format(*_OURS),
    "llm-workers-0": "127.11.{}.{}".format(*_OURS),
}
PORTS = ("7200", "7201", "7202", "7210", "9100")


class Pods:
    """Runs the containers of the manifests. `at` has the port that stands for each."""

    def __init__(self, manifests: list[Manifest], folder: Path) -> None:
        self.folder = folder
        self.at = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._manifests = {(m["kind"], m["metadata"]["name"]): m for m in manifests}
        topology = self._manifests["Secret", "llm-topology"]
        (folder / "secret").write_text(secrets.token_hex(24))
        (folder / "cluster.yaml").write_text(self._here(topology["stringData"]["cluster.yaml"]))

    def start(self, kind: str, name: str, pod: str = "") -> None:
        template = self._manifests[kind, name]["spec"]["template"]
        (container,) = template["spec"]["containers"]
        pod = pod or name
        state = self.folder / pod
        state.mkdir(exist_ok=True)
        fields = {"metadata.name": pod, "metadata.uid": f"uid-of-{pod}"}
        environment = {
            each["name"]: each["value"]
            if "value" in each
            else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
        }
        arguments = [self._here(each, pod) for each in container["args"]]
        for key, value in environment.items():
            arguments = [each.replace(f"$({key})", value) for each in arguments]
        with (state / "log").open("ab") as log:
            self.running[pod] = subprocess.Popen(
                [sys.executable, *arguments],
                env=os.environ
                | {key: self._here(value, pod) for key, value in environment.items()}
                | {"TMPDIR": str(self.folder)},
                stdout=log,
                stderr=log,
            )

    def _here(self, text: str, pod: str = "") -> str:
        here = {
            f"{name}.llm-hosts.prod.svc.cluster.local": address for name, address in PODS.items()
        } | {
            "/var/lib/twolane": str(self.folder / pod),
            "/etc/twolane/topology": str(self.folder),
            "/etc/twolane/secret": str(self.folder),
            **self.at,
        }
        # In one pass: a port that stands for another may look like one of them itself.
        text = re.sub("|".join(map(re.escape, here)), lambda found: here[found[0]], text)
        if not pod:  # the topology: each host listens where others dial it
            value = yaml.safe_load(text)
            for host in value["hosts"]:
                host["bind_host"] = host["advertise_host"]
            value["router"]["host"] = PODS["llm-router-0"]
            return str(yaml.safe_dump(value | {"ports": ""}))
        return text.replace("0.0.0.0", PODS.get(pod, ""))

    def close(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(60)


@pytest.fixture
def pods() -> Iterator[Pods]:
    folder = Path(tempfile.mkdtemp(prefix="tw-"))  # short: paths of sockets have 107 bytes
    made = Pods(render(VALUES), folder)
    yield made
    made.close()
    shutil.rmtree(folder)


def test_the_pods_of_the_chart_answer_and_end(pods: Pods) -> None:
    pods.start("Deployment", "llm-controller")
    pods.start("StatefulSet", "llm-router", "llm-router-0")
    pods.start("StatefulSet", "llm-workers", "llm-workers-0")
    door = f"http://{PODS['llm-router-0']}:{pods.at['7202']}"
    ready = pods.folder / "llm-workers-0" / "agent" / "ready"

    def is_healthy() -> bool:
        try:
            with urllib.request.urlopen(f"{door}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    # The file is written anew all the time: it may be empty for a moment.
    wait_until(lambda: ready.exists() and ready.read_text() == "decode-0\nprefill-0\n")
    wait_until(is_healthy)
    body = json.dumps({"model": "bundled", "prompt": "Once", "max_tokens": 3}).encode()
    request = urllib.request.Request(
        f"{door}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 3
    metrics = f"http://{PODS['llm-router-0']}:{pods.at['9100']}/targets"
    with urllib.request.urlopen(metrics, timeout=30) as answer:
        assert len(json.load(answer)) == 3, "the router, and two workers"
    for name in ("llm-controller", "llm-workers-0", "llm-router-0"):
        pods.running[name].terminate()
        assert pods.running[name].wait(60) == 0, (pods.folder / name / "log").read_text()
    assert not ready.exists()
