"""`python -m tests.hosts [pytest's arguments]`, which is `make test-hosts`: run the tests of this
folder in namespaces of their own.

    unshare (network, processes, mounts) ── sh, process 1 ── pytest, on a bridge at 10.77.0.1
                                                 └── each fake host: namespaces again, on the bridge

Whatever the tests start ends with process 1, and process 1 ends with this command. Root is not
needed where the kernel lets users have namespaces. Where it lets nobody, the command fails.

Without arguments two workers of pytest share the files, each with all of the above to itself: the
tests wait more than they compute. With arguments one process runs what they choose.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

IN_NAMESPACES = "TWOLANE_TEST_HOSTS"  # set for the tests
_WORKERS = 2
_TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "nft": "nftables"}


def main() -> int:
    missing = [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]
    if missing:
        print(f"tests of hosts need {', '.join({*missing})}: apt install them", file=sys.stderr)
        return 1
    prefix = _unshare()
    if not prefix:
        print("tests of hosts need namespaces: run them as root, in a container", file=sys.stderr)
        print("with --privileged, or where users may have namespaces", file=sys.stderr)
        return 1
    os.environ[IN_NAMESPACES] = "1"
    # sh stays as process 1: it reaps whom the tests leave behind
    inside = [*prefix, "sh", "-c", '"$@"; exit $?', "sh", sys.executable]
    tests = ["-m", "pytest", "tests/hosts"]
    if arguments := sys.argv[1:]:
        command = [*inside, *tests, *arguments]
    else:
        workers = f"{_WORKERS}*popen//python={shlex.join(inside)}"
        command = [sys.executable, *tests, "--dist", "loadfile", "--tx", workers]
    return subprocess.run(command, check=False).returncode


def _unshare() -> list[str]:
    """The command that starts another in fresh namespaces; empty where none works."""
    spaces = ["-n", "-m", "-p", "-i", "-u", "--fork", "--mount-proc", "--kill-child"]
    for command in (["unshare", *spaces], ["unshare", "--user", "--map-root-user", *spaces]):
        probe = "ip link add br0 type bridge && nft add table inet t && mount -t tmpfs t /mnt"
        done = subprocess.run([*command, "sh", "-c", probe], capture_output=True, check=False)
        if done.returncode == 0:
            return command
        print(f"{' '.join(command)}: {done.stderr.decode().strip()}", file=sys.stderr)
    return []


if __name__ == "__main__":
    sys.exit(main())
