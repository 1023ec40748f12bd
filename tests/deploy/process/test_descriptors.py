"""How many descriptors a process may have, and what a router makes of few of them."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from tests.deploy.agent.agent_cluster import wait_until
from tests.deploy.clusters import model_with
from twolane.deploy.process.compose_router import grpc_door_config, http_config
from twolane.deploy.process.descriptors import LEAST, Shares, share
from twolane.deploy.spec.specs import RouterSpec
from twolane.router.config import GrpcDoorConfig, HttpConfig

ROUTER = ["router", "--port", "0", "--worker-port", "0", "--http-port", "0"]
SPEC = RouterSpec(router_id="r", model=model_with(model_dir="", name="m"))


@pytest.mark.parametrize("limit", [LEAST, 64, 256, 1024, 4096, 20_000, 65_536, 1_000_000])
def test_doors_leave_descriptors_for_workers_and_files(limit: int) -> None:
    n_open = 28
    shares = share(limit, n_open)
    left = limit - n_open - shares.grpc - shares.http
    assert left >= min(1024, (limit - n_open) // 4)
    assert min(shares.grpc, shares.http) >= 1


def test_a_process_with_more_open_than_it_may_have_still_takes_one_client_each() -> None:
    assert asdict(share(32, 40)) == {"grpc": 1, "http": 1}


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        (Shares(grpc=300, http=400), (300, 400)),
        (Shares(grpc=10**6, http=10**6), (GrpcDoorConfig().connections, HttpConfig().connections)),
    ],
)
def test_connections_are_bounded_by_what_the_limit_leaves(
    shares: Shares, expected: tuple[int, int]
) -> None:
    http = http_config(SPEC, shares)
    assert http is not None
    assert (grpc_door_config(shares).connections, http.connections) == expected


@pytest.mark.parametrize("module", ["twolane.deploy.up", "twolane.deploy"])
def test_too_few_descriptors_are_one_clear_line(module: str) -> None:
    command = f"ulimit -n 16; exec {sys.executable} -m {module}"
    command += " router" if module == "twolane.deploy" else " --engine fake"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        f"too few descriptors: this process may open 16 files and sockets, and needs at least "
        f"{LEAST}; see `ulimit -n`"
    )


@pytest.mark.parametrize(
    "arguments", [["twolane.deploy.up", "--engine=fake"], ["twolane.deploy", "router"]]
)
def test_a_machine_without_proc_is_one_clear_line(arguments: list[str]) -> None:
    hide = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if subprocess.run([*hide, "true"], capture_output=True, timeout=60).returncode:
        pytest.skip("needs user namespaces")
    command = [*hide, sys.executable, "-m", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "/proc is not mounted: twolane needs it" in line


@pytest.fixture
def router(tmp_path: Path) -> Iterator[tuple[psutil.Process, str, Path]]:
    """A router in a process of its own: the process, host:port of HTTP, its log."""
    log = tmp_path / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "twolane.deploy", *ROUTER],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with process:
        assert process.stdout is not None
        http = next(line for line in process.stdout if "speaks HTTP at" in line).split()[-1]
        yield psutil.Process(process.pid), http, log
        process.kill()


def test_a_router_out_of_descriptors_neither_spins_nor_floods_its_log_and_comes_back(
    router: tuple[psutil.Process, str, Path],
) -> None:
    process, http, log = router
    host, _, port = http.rpartition(":")
    hard = process.rlimit(resource.RLIMIT_NOFILE)[1]
    process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds() + 20, hard))  # it counts on more
    with ExitStack() as stack:
        for _ in range(100):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex((host, int(port)))
        wait_until(lambda: "out of system resource" in log.read_text())  # it is so
        began_s, cpu_s = time.monotonic(), sum(process.cpu_times()[:2])
        time.sleep(1.5)  # in which it tries to take more, once a second
        spent_s = sum(process.cpu_times()[:2]) - cpu_s
        assert spent_s < (time.monotonic() - began_s) / 3
        assert len(log.read_text()) < 50_000
    wait_until(lambda: answers(http))  # the next time that it looks


def answers(http: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{http}/v1/models", timeout=5).close()
    except OSError:
        return False
    return True
