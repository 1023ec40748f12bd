"""Where, beside what, and with what installed `twolane up` starts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.clusters import cluster_with, model_with
from tests.ports import free_ports
from twolane.deploy.cli.up_command import _check_ports
from twolane.deploy.errors import StartError
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.settings import WorkerSettings
from twolane.testing import start_local

UP = [sys.executable, "-m", "twolane.cli", "up", "--json", "--engine", "fake", "--colocated", "1"]
OURS = ("router", "worker", "deploy", "engine", "kvtransfer", "prefill_worker", "decode_worker")


def up_until_ready(
    *arguments: str, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> list[dict[str, str]]:
    """The events of a cluster that is stopped as soon as it is ready, or that cannot start."""
    done = subprocess.Popen(
        [*UP, "--port", "0", "--until-stdin-closes", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    events = []
    with done:
        assert done.stdout is not None
        assert done.stdin is not None
        for line in done.stdout:
            events.append(json.loads(line))
            if events[-1]["kind"] == "ready":
                done.stdin.close()
    return events


# With Ray, tests/deploy/test_installed.py starts among such files each time.
@pytest.mark.parametrize("launcher", ["process", pytest.param("ray", marks=pytest.mark.soak)])
def test_files_where_the_user_works_are_not_ours(launcher: str, tmp_path: Path) -> None:
    for name in OURS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the user')\n")
    (tmp_path / "worker.py").unlink()
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__init__.py").write_text("raise SystemExit('worker of the user')\n")
    events = up_until_ready("--launcher", launcher, cwd=tmp_path)
    assert events[-1]["kind"] == "stopped", events[-1]


def test_a_cluster_serves_on_ipv6() -> None:
    with (
        start_local(engine="fake", colocated=1, host="::1") as cluster,
        cluster.client() as client,
    ):
        assert cluster.endpoint.startswith("[::1]:")
        assert len(client.generate("hello", max_tokens=3).tokens) == 3
        with urllib.request.urlopen(f"http://{cluster.http_endpoint}/health", timeout=10) as health:
            assert health.status == 200
        metrics = cluster.wait_for("started", "router-0")["metrics"]
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as page:
            assert b"twolane_router" in page.read()


def cluster_at(ports: dict[str, Any]) -> ClusterSpec:
    worker_metrics_port = ports.pop("worker_metrics_port", 0)
    cluster = cluster_with(model_with(model_dir="", name="m"), colocated=1, **ports)
    (pool,) = cluster.pools
    return replace(
        cluster,
        pools=(replace(pool, settings=WorkerSettings(worker_metrics_port=worker_metrics_port)),),
    )


@pytest.mark.parametrize(
    ("field", "option"),
    [
        ("port", "--port"),
        ("http_port", "--http-port"),
        ("worker_port", "--worker-port"),
        ("metrics_port", "--metrics-port"),
        ("worker_metrics_port", "--worker-metrics-port"),
    ],
)
def test_a_port_that_is_taken_is_named_with_its_option_alone(field: str, option: str) -> None:
    (port,) = free_ports(1)  # which nobody else takes when it is free again
    with socket.create_server(("127.0.0.1", port)):
        ports = {"port": 0, "http_port": 0, "worker_port": 0, field: port}
        cluster = cluster_at(ports)
        with pytest.raises(StartError) as caught:
            _check_ports(cluster)
    another = f"take another, like {option} {port + 100}, or 0 for any free one"
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port} ({option}): it is in use; {another}"
    )
    _check_ports(cluster)


@pytest.mark.parametrize(
    ("engine", "absent"),
    [
        ("fake", ["redis", "transformers", "ray", "torch", "safetensors", "triton"]),
        ("model", ["redis", "transformers", "ray"]),
    ],
)
def test_a_cluster_serves_without_packages_that_it_does_not_use(
    engine: str, absent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = f"import sys\nsys.modules.update(dict.fromkeys({absent}))\n"
    (tmp_path / "sitecustomize.py").write_text(site)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        start_local(
            engine=engine, prefill=1, decode=1, pages=64, max_context_tokens=256
        ) as cluster,
        cluster.client() as client,
    ):
        assert len(client.generate("hello", max_tokens=3, ignore_eos=True).tokens) == 3


def test_a_port_that_a_cluster_of_ones_own_has_is_told_with_what_ends_that() -> None:
    with start_local(engine="fake", colocated=1) as running, pytest.raises(StartError) as refused:
        _check_ports(cluster_at({"port": int(running.endpoint.rpartition(":")[2])}))
    assert "it is in use; take another" in str(refused.value)
    assert str(refused.value).endswith("A cluster of yours is there: `twolane down` ends it")
