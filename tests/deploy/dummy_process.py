"""A process that understands the launcher's arguments and serves nothing.

What it does stands in the spec's model name: `ok`, `crash` (with a traceback), `refuse` (with a
reason), `stubborn` (ignores SIGTERM), `slow` (never ready), `gpus` (prints those it may see),
`parent` (starts a process that does not end with it, and prints its pid).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from twolane.deploy.process.handshake import Ready, send_failure, send_ready
from twolane.deploy.process.parent_death import die_with_parent


def main() -> None:
    assert sys.argv[2] == "--spec-from-stdin"
    arguments = dict(zip(sys.argv[3::2], sys.argv[4::2], strict=True))
    die_with_parent(int(arguments["--parent-pid"]))
    fd = int(arguments["--ready-fd"])
    behaviour = json.loads(sys.stdin.read())["model"]["config"]["model_name"]
    print(f"dummy {sys.argv[1]} {behaviour}", flush=True)
    if behaviour == "gpus":
        print(f"sees {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}", flush=True)
    if behaviour == "parent":
        print(f"started {subprocess.Popen(['sleep', '60']).pid}", flush=True)
    if behaviour == "crash":
        raise RuntimeError("no such luck")
    if behaviour == "refuse":
        send_failure(fd, "the model is square")
        raise SystemExit(1)
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour != "slow":
        send_ready(fd, Ready("127.0.0.1:1", "", os.getpid()))
    time.sleep(60)


main()
