"""Others in our processes fork, as Ray does for its daemons."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import subprocess, sys, threading

import twolane.deploy
import grpc

stop = threading.Event()


def dial() -> None:
    while not stop.wait(0.002):
        with grpc.insecure_channel("127.0.0.1:9") as channel:
            channel.unary_unary("/a/b")
            channel.subscribe(lambda _: None, try_to_connect=True)


threads = [threading.Thread(target=dial) for _ in range(4)]
for thread in threads:
    thread.start()
codes = [subprocess.run(["true"], preexec_fn=int).returncode for _ in range(150)]
stop.set()
for thread in threads:
    thread.join()
print(sum(code != 0 for code in codes))
"""


def test_a_child_forked_beside_grpc_becomes_its_program() -> None:
    """gRPC's handlers of a fork start its threads again in the child, which may abort."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "0"
