"""Where the documents' commands run: a home of its own, and a cluster that is as small as can be.

`twolane up …` of a document starts a cluster with a fake engine at free ports, ends the one before,
and returns when it serves.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_ports

_SHIM = """#!/bin/sh
case "$1" in generate | chat | models | auth) export TWOLANE_ENDPOINT={endpoint};; esac
[ "$1" = up ] || exec {python} -m twolane.cli "$@"
case " $* " in *" --print-topology "*) exec {python} -m twolane.cli "$@";; esac
shift
{end}
exec > {folder}/up.log 2>&1 < /dev/null
env --default-signal=INT timeout --signal=INT 290 \\
    {python} -m twolane.cli up --json {small} {ports} "$@" &
echo $! > {folder}/up.pid
until grep -q '"kind": "ready"' {folder}/up.log; do
    kill -0 $! 2> /dev/null || exit 1
    sleep 0.05
done
"""
_END = """
if [ -e {folder}/up.pid ]; then
    kill -INT "$(cat {folder}/up.pid)" 2> /dev/null
    while kill -0 "$(cat {folder}/up.pid)" 2> /dev/null; do sleep 0.05; done
    rm {folder}/up.pid
fi
"""
TRACE = "arrival_ms,prompt_tokens,output_tokens\n" + "".join(
    f"{n * 40},512,64\n" for n in range(200)
)
# Every answer is shorter than what a router keeps for a client that reads nothing for a second: the
# engine takes no time for it, and a busy machine may give the client none.
SMALL = "--launcher process --engine fake --seats 8 --max-output-tokens 2000"


class Stage:
    """Made by `stage`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = free_ports(2)
        (folder / "bin").mkdir()
        self._tmp = tempfile.TemporaryDirectory(prefix="docs-")  # short: sockets are in it
        grpc, http = self.ports
        self._end = _END.format(folder=shlex.quote(str(folder)))
        ports = f"--port {grpc} --http-port {http}"
        shim = folder / "bin" / "twolane"
        shim.write_text(
            _SHIM.format(
                python=sys.executable,
                ports=ports,
                end=self._end,
                small=SMALL,
                folder=folder,
                endpoint=f"localhost:{grpc}",
            )
        )
        shim.chmod(0o755)
        (folder / "bin" / "python").symlink_to(sys.executable)
        self.environment = os.environ | {
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / ".config"),
            "TMPDIR": self._tmp.name,
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": str(Path.cwd()),
        }

    def run(self, script: str, program: str = "bash") -> str:
        """What it prints. Raises AssertionError with all of it if a command fails."""
        command = ["bash", "-euo", "pipefail"] if program == "bash" else [sys.executable]
        here = Path(tempfile.mkdtemp(dir=self.folder))
        (here / "script").write_text(script)
        (here / "requests.csv").write_text(TRACE)
        log = self.folder / "up.log"
        told = log.read_text() if log.exists() else ""
        pids = re.findall(r'"started", "name": "decode-0".*"pid": (\d+)', told)
        done = subprocess.run(
            [*command, here / "script"], cwd=here, text=True,
            env=self.environment | {"PID": pids[-1] if pids else ""},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        told = log.read_text() if log.exists() else ""
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{told[-3000:]}"
        return done.stdout

    def is_up(self) -> bool:
        return (self.folder / "up.pid").exists()

    def end(self) -> None:
        subprocess.run(["sh", "-c", self._end], env=self.environment, check=True)
        self._tmp.cleanup()


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    made = Stage(folder)
    try:
        yield made
    finally:
        made.end()
