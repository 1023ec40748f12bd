"""What Ray writes to standard output does not get among the lines of our commands."""

from __future__ import annotations

import subprocess
import sys

# Ray writes from Python, from C++ and at exit.
_COMMAND = """
import atexit, os, sys
from twolane.deploy.cli.own_stdout import take_over

print("ours 1")
out = take_over(sys.stdout, others=sys.stderr.fileno())
print("python", flush=True)
os.write(1, b"c++\\n")
os.system("echo child")
print("ours 2", file=out)
atexit.register(print, "exit")
"""


def test_only_the_commands_own_lines_get_to_standard_output() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["ours 1", "ours 2"]
    assert done.stderr.splitlines() == ["python", "c++", "child", "exit"]
