"""How many descriptors a process may have, and what a router makes of few of them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict

import pytest

from deploy.compose_router import grpc_door_config, http_config
from deploy.descriptors import LEAST, Shares, share
from deploy.spec import ModelSpec, RouterSpec
from router.config import GrpcDoorConfig, HttpConfig

SPEC = RouterSpec(router_id="r", model=ModelSpec(model_dir="", name="m"), http_port=0)


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


@pytest.mark.parametrize("module", ["deploy.up", "deploy"])
def test_too_few_descriptors_are_one_clear_line(module: str) -> None:
    command = f"ulimit -n 16; exec {sys.executable} -m {module}"
    command += " router --engine fake" if module == "deploy" else " --engine fake"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        f"too few descriptors: this process may open 16 files and sockets, and needs at least "
        f"{LEAST}; see `ulimit -n`"
    )
