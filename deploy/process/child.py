"""One router or worker as a process: reports when it serves, serves until SIGTERM, exits
cleanly."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from twolane.deploy.errors import StartError
from twolane.deploy.process.evidence import Evidence
from twolane.deploy.process.handshake import Ready, send_failure, send_ready
from twolane.deploy.process.log_limit import limit_records
from twolane.deploy.process.parent_death import outlive_parent
from twolane.deploy.process.serving import Where, serving
from twolane.deploy.spec.listeners import insecure_listeners, warn_of
from twolane.deploy.spec.specs import ProcessSpec
from twolane.rpc.log_tail import LOG_TAIL
from twolane.rpc.measured_loop import MeasuredLoop

log = logging.getLogger(__name__)


def run_process(spec: ProcessSpec, ready_fd: int | None) -> None:
    """Serve until SIGTERM or SIGINT. If it cannot start, the reason is written to `ready_fd` and
    the exit code is 1. An unexpected exception in any thread ends the process with its
    traceback."""
    end_with_threads()
    log_to_stderr(spec.log_level)
    is_ready = threading.Event()
    try:
        with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
            runner.run(_serve(spec, ready_fd, is_ready))
    except StartError as error:
        if ready_fd is not None and not is_ready.is_set():
            send_failure(ready_fd, str(error))
        raise SystemExit(f"{spec.name}: {error}") from error


def log_to_stderr(level: str = "info") -> None:
    """Log our own records from `level` on, those of libraries from WARNING on. Repeated records are
    rate-limited."""
    form = "%(asctime)s %(levelname).1s %(name)s: %(message)s"
    handler = logging.StreamHandler()
    limit_records(handler)
    LOG_TAIL.filters.clear()
    limit_records(LOG_TAIL)
    logging.basicConfig(level=logging.WARNING, format=form, handlers=[handler, LOG_TAIL])
    logging.getLogger("twolane").setLevel(level.upper())


def end_with_threads() -> None:
    """From now on an unexpected exception in a thread ends the process and its ranks, which the
    launcher notices. Otherwise a transport whose thread has died would never free its pages."""
    threading.excepthook = _end_process


def _end_process(thrown: threading.ExceptHookArgs) -> None:
    name = "a thread" if thrown.thread is None else f"thread {thrown.thread.name}"
    print(f"{name} broke:", file=sys.stderr)
    traceback.print_exception(thrown.exc_value)
    sys.stderr.flush()
    os._exit(1)


async def _serve(spec: ProcessSpec, ready_fd: int | None, is_ready: threading.Event) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    evidence = Evidence.of_this_process(spec) if spec.state_dir else None
    if evidence is not None:
        evidence.write(Path(spec.state_dir))
    async with serving(spec) as where:
        is_ready.set()
        ready = Ready(**asdict(where), pid=os.getpid())
        if evidence is not None:
            evidence.serving(ready).write(Path(spec.state_dir))
            outlive_parent()  # if it has died by now, `ready_fd` is closed
        for line in doors_in_words(spec.name, where):
            log.info("%s", line)
        if ready_fd is None:
            for line in doors_in_words(spec.name, where):
                print(line, flush=True)
        else:
            send_ready(ready_fd, ready)
        warning = asyncio.create_task(warn_of(insecure_listeners(spec)), name="insecure")
        await stop.wait()
        warning.cancel()
        log.info("%s was asked to stop", spec.name)


def doors_in_words(name: str, where: Where) -> Iterator[str]:
    """One line for each listener. Programs parse the first two."""
    yield f"{name} serves at {where.endpoint}" + (f" ({where.runs_on})" if where.runs_on else "")
    for verb, endpoint in (
        ("hears workers", where.worker_endpoint),
        ("speaks HTTP", where.http_endpoint),
        ("hears operators", where.admin_endpoint),
        ("hears operators", where.admin_port_endpoint),
        ("shows metrics", where.metrics_endpoint),
    ):
        if endpoint:
            yield f"{name} {verb} at {endpoint}"
