"""The process under test, alone or with scripted workers."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from benchmarks.control_plane.scripted_row import ScriptConfig
from twolane.rpc.secret import new_secret

MODEL = "bundled"
_ROUTER = ("twolane.deploy", "router", "--port", "0", "--worker-port", "0", "--http-port", "0")


_LISTENERS = ("serves", "hears workers", "speaks HTTP", "hears operators", "shows metrics")
_TOKENS = "twolane_router_generated_tokens_total"


class RouterError(RuntimeError):
    """The process did not start; its output is on standard error."""


@dataclass(frozen=True, slots=True)
class RouterProcess:
    """A router, or its replacement."""

    endpoint: str
    pid: int
    worker_endpoint: str = ""  # where workers announce themselves
    http_endpoint: str = ""
    metrics_endpoint: str = ""

    def n_tokens(self) -> float:
        """Of answers, so far, as its metrics count them."""
        return self.count(_TOKENS)

    def count(self, name: str) -> float:
        """The sum of a counter over its labels."""
        with urllib.request.urlopen(f"http://{self.metrics_endpoint}/metrics") as page:
            pattern = rf"^{name}(?:{{.*}})? (\S+)$"
            found = re.findall(pattern, page.read().decode(), re.MULTILINE)
        return sum(map(float, found))

    @property
    def cpu_s(self) -> float:
        """CPU time so far, of all its threads, system time included."""
        return time.clock_gettime(~self.pid << 3 | 2)  # what clock_getcpuclockid(3) returns


@contextmanager
def start_router(
    step_s: float, *, checkout: Path | None = None, rows: int = 1_024, vocab_size: int = 256
) -> Iterator[RouterProcess]:
    """A router, and one prefill and one decode worker that compute nothing, with steps of
    `step_s`, `rows` rows and so many token ids. `checkout` is another one of this repository,
    whose router is meant."""
    with NamedTemporaryFile("w", prefix="twolane-secret-") as file:
        secret = new_secret()
        file.write(secret)
        file.flush()
        started = _started_router(
            file.name, secret, step_s, checkout, rows=rows, vocab_size=vocab_size
        )
        with started as router:
            yield router


@contextmanager
def start_routers(n: int, step_s: float) -> Iterator[list[RouterProcess]]:
    """`n` routers at one gRPC and one HTTP port, each with workers of its own."""
    with ExitStack() as started:
        routers: list[RouterProcess] = []
        file = started.enter_context(NamedTemporaryFile("w", prefix="twolane-secret-"))
        secret = new_secret()
        file.write(secret)
        file.flush()
        for _ in range(n):
            options: list[str] = ["--routers", str(n)]
            if routers:
                ports = (routers[0].endpoint, routers[0].http_endpoint)
                port, http_port = (endpoint.rpartition(":")[2] for endpoint in ports)
                options += ["--port", port, "--http-port", http_port]
            router = _started_router(file.name, secret, step_s, None, options)
            routers.append(started.enter_context(router))
        yield routers


@contextmanager
def _started_router(
    secret_file: str,
    secret: str,
    step_s: float,
    checkout: Path | None,
    options: Sequence[str] = (),
    *,
    rows: int = 1_024,
    vocab_size: int = 256,
) -> Iterator[RouterProcess]:
    router_command = (*_ROUTER, "--secret-file", secret_file, *options)
    with _start(router_command, hears_workers=True, checkout=checkout) as router:
        config = ScriptConfig(
            router=router.worker_endpoint,
            model=MODEL,
            step_s=step_s,
            secret=secret,
            decode_rows=rows,
            vocab_size=vocab_size,
        )
        scripted = [sys.executable, "-m", "benchmarks.control_plane.scripted_worker"]
        with subprocess.Popen(scripted, stdin=subprocess.PIPE, text=True) as workers:
            try:
                assert workers.stdin is not None
                workers.stdin.write(config.to_json() + "\n")
                workers.stdin.flush()
                yield router
            finally:
                workers.kill()


@contextmanager
def start_bare_door(step_s: float) -> Iterator[RouterProcess]:
    """A bare gRPC server instead of the router."""
    with _start(("benchmarks.control_plane.bare_door", str(step_s))) as door:
        yield door


@contextmanager
def _start(
    module_and_options: Sequence[str],
    *,
    hears_workers: bool = False,
    checkout: Path | None = None,
) -> Iterator[RouterProcess]:
    """Start a Python module that prints `serves at HOST:PORT` (and then, if it is a router, `hears
    workers at HOST:PORT` and so on for its other
    listeners); kill it at the end of the block."""
    command = [sys.executable, "-m", *module_and_options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=checkout) as process:
        try:
            assert process.stdout is not None
            told = []
            for verb in _LISTENERS if hears_workers else _LISTENERS[:1]:
                found = re.search(rf"{verb} at (\S+)", process.stdout.readline())
                if found is None:
                    raise RouterError(f"{module_and_options[0]} did not start")
                told.append(found[1])
            endpoint, *others = told
            if others:
                workers, http, _, metrics = others
                yield RouterProcess(endpoint, process.pid, workers, http, metrics)
            else:
                yield RouterProcess(endpoint, process.pid)
        finally:
            process.kill()
