"""A process that understands the launcher's arguments and serves nothing.

What it does stands in the spec's model name: `ok`, `crash` (with a traceback), `refuse` (with a
reason), `stubborn` (ignores SIGTERM), `slow` (never ready), `gpus` (prints those it may see),
`parent` (starts a process that does not end with it, and prints its pid).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from twolane.deploy.process.evidence import Evidence
from twolane.deploy.process.handshake import Ready, send_failure, send_ready
from twolane.deploy.process.parent_death import die_with_parent, outlive_parent
from twolane.deploy.spec.spec_json import from_json
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec, WorkerSpec


def main() -> None:
    assert sys.argv[2] == "--spec-from-stdin"
    arguments = dict(zip(sys.argv[3::2], sys.argv[4::2], strict=True))
    die_with_parent(int(arguments["--parent-pid"]))
    fd = int(arguments["--ready-fd"])
    text = sys.stdin.read()
    spec: ProcessSpec
    spec = from_json(RouterSpec, text) if sys.argv[1] == "router" else from_json(WorkerSpec, text)
    behaviour = spec.model.name
    state_dir = Path(spec.state_dir)
    print(f"dummy {sys.argv[1]} {behaviour}", flush=True)
    if spec.state_dir:
        Evidence.of_this_process(spec).write(state_dir)
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
        ready = Ready("127.0.0.1:1", "", os.getpid())
        if spec.state_dir:
            Evidence.of_this_process(spec).serving(ready).write(state_dir)
            outlive_parent()
        send_ready(fd, ready)
    time.sleep(60)


main()
