"""A whole cluster on this machine for the length of a `with` block.

    with twolane.testing.start_local() as cluster, cluster.client() as client:
        print(client.generate("Once upon a time").text)

It runs `python -m twolane.deploy.up` (extra `[serve]`) in a subprocess, which stops when this
process ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from twolane.aclient import AsyncClient
from twolane.admin import AdminClient
from twolane.client import Client
from twolane.errors import UnavailableError
from twolane.status import ClusterStatus
from twolane.testing.extras import missing_for_serving

Option = str | int | float | bool | Path | Sequence[str] | None
Event = Mapping[str, Any]
LAST_LINES = 20  # of standard error, shown if the cluster does not start
LAST_WORDS_S = 5.0


class LocalCluster:
    """Made by `start_local`; every method may be called from any thread.

    `endpoint` (host:port) is for twolane's clients; HTTP clients use `http://<http_endpoint>/v1`,
    and operators `admin_endpoint` (unix:PATH). `events` are the launcher's events so far, oldest
    first: dicts with `kind` (starting, started, ready, died, restarting, fenced, failed, stopping,
    stopped), `name`, `epoch`, `pid`, `text`.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.endpoint = ""
        self.http_endpoint = ""
        self.admin_endpoint = ""
        self.events: list[Event] = []
        self._is_over = False  # no more events will come
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONSAFEPATH": "1"},  # for its children, too
        )
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._copier = threading.Thread(target=self._copy_errors, daemon=True)
        self._copier.start()
        self._reader = threading.Thread(target=self._read_events, daemon=True)
        self._reader.start()

    def client(self) -> Client:
        """A new blocking client; close it."""
        return Client(self.endpoint)

    def aclient(self) -> AsyncClient:
        """A new asyncio client; close it."""
        return AsyncClient(self.endpoint)

    def admin(self) -> AdminClient:
        """A new operator's client; close it."""
        return AdminClient(self.admin_endpoint)

    def status(self) -> ClusterStatus:
        with self.admin() as admin:
            return admin.status()

    def pid(self, name: str) -> int:
        """The process id of the latest incarnation of a worker or router. KeyError if none."""
        with self._news:
            for event in reversed(self.events):
                if event["kind"] == "started" and event["name"] == name:
                    return int(event["pid"])
        raise KeyError(name)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a worker or router; returns its process id."""
        pid = self.pid(name)
        os.kill(pid, number)
        return pid

    def wait_for(
        self, kind: str, name: str = "", *, after: int = 0, timeout_s: float = 60
    ) -> Event:
        """Wait for the first event of this kind and name at or after index `after` of `events`.

        Raises TimeoutError, or `UnavailableError` if the cluster ends first.
        """

        end_s = time.monotonic() + timeout_s
        with self._news:
            while True:
                for event in self.events[after:]:
                    if (event["kind"], event.get("name", "")) == (kind, name):
                        return event
                if self._is_over:
                    raise UnavailableError(self._last_words())
                if not self._news.wait(max(0.0, end_s - time.monotonic())):
                    raise TimeoutError(f"no {kind} {name} within {timeout_s:g} s")

    def stop(self, timeout_s: float = 30.0) -> None:
        """End every process of the cluster. May be called twice."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its children die with it
            self._process.wait()
            raise
        finally:
            self._reader.join()
            self._copier.join()
            self._process.stdout.close()
            self._process.stderr.close()

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: Event = {"kind": "output", "text": line}
            if line.startswith("{"):
                with suppress(ValueError):  # of a line that is cut off, as when it was killed
                    event = json.loads(line)
            with self._news:
                self.events.append(event)
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def _copy_errors(self) -> None:
        """Copy the cluster's standard error to ours, and keep its last lines."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last_lines.append(line)
            print(line, end="", file=sys.__stderr__, flush=True)

    def _last_words(self) -> str:
        for event in reversed(self.events):
            if event["kind"] == "failed":
                return str(event["text"])
        try:
            code = str(self._process.wait(LAST_WORDS_S))
        except subprocess.TimeoutExpired:
            code = "unknown"
        self._copier.join(LAST_WORDS_S)
        lines = "".join(self._last_lines).strip() or "its standard error is empty"
        return f"the cluster ended with exit code {code}: {lines}"


@contextmanager
def start_local(
    model: str | Path | None = None,
    *,
    prefill: int | None = None,
    decode: int | None = None,
    colocated: int | None = None,
    launcher: str | None = None,
    engine: str | None = None,
    topology: str | Path | None = None,
    start_timeout_s: float = 90.0,
    **options: Option,
) -> Iterator[LocalCluster]:
    """Start a cluster on a free port, yield it once it serves, and stop it at the end of the block.

    `model`: None for the bundled one, a directory, or an id of the Hugging Face Hub. Without
    counts: one prefill and one decode worker. `topology`: a YAML file, or a name that `twolane up`
    knows; the other arguments override it. `launcher`: "process" or "ray"; None: the topology's, or
    "process" without one. `engine`: "model", or "fake", which answers quickly with meaningless
    tokens. `options` are those of `twolane up`: page_tokens=16, exact=True, transport=["tcp"],
    lease_s=3.0, …

    Raises `UnavailableError` with the launcher's message if the cluster does not start, or with the
    command that installs missing packages.
    """
    if launcher is None and topology is None:
        launcher = "process"
    missing = missing_for_serving(launcher, engine)
    if missing is not None:
        raise UnavailableError(missing)
    settings: dict[str, Option] = {
        "topology": topology,
        "model": model,
        "prefill": prefill,
        "decode": decode,
        "colocated": colocated,
        "launcher": launcher,
        "engine": engine,
        "port": 0,
        **options,
    }
    flags = [flag for name, value in settings.items() for flag in _flags(name, value)]
    # -P: do not import from the working directory, which may hold modules of the same names
    python = [sys.executable, "-P", "-m", "twolane.deploy.up"]
    cluster = LocalCluster([*python, "--json", "--until-stdin-closes", *flags])
    try:
        ready = cluster.wait_for("ready", timeout_s=start_timeout_s)
        cluster.endpoint, cluster.http_endpoint = ready["endpoint"], ready.get("http", "")
        cluster.admin_endpoint = ready["admin"]
        yield cluster
    finally:
        cluster.stop()


def _flags(name: str, value: Option) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, str | int | float | Path):
        return [flag, str(value)]
    return [part for item in value for part in (flag, item)]
