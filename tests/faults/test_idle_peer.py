"""One address that takes the whole gRPC door: in a network of its own, as the loopback is not
bounded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NETWORK = "ip link set lo up && ip addr add 192.0.2.1/32 dev lo"
APART = ["unshare", "--net", *([] if os.getuid() == 0 else ["--map-root-user"]), "sh", "-c"]


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_one_address_cannot_keep_others_from_the_grpc_door(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if subprocess.run([*APART, NETWORK], capture_output=True, check=False).returncode:
        pytest.skip("needs a network namespace")
    command = [sys.executable, "-m", "tests.faults.idle_peer", str(tmp_path)]
    done = subprocess.run(
        [*APART, f'{NETWORK} && exec "$@"', "sh", *command],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    with capsys.disabled():
        print(f"\n{done.stdout}")
    assert done.returncode == 0, done.stderr
