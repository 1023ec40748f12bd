"""One router or worker as a process: says when it serves, serves until SIGTERM, ends cleanly."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
from dataclasses import asdict

from deploy.handshake import Ready, send_failure, send_ready
from deploy.launcher import StartError
from deploy.log_limit import limit_records
from deploy.serving import serving
from deploy.spec import ProcessSpec


def run_process(spec: ProcessSpec, ready_fd: int | None) -> None:
    """Serve until SIGTERM or SIGINT. Exits with 1 if it could not start; the reason has been told
    to `ready_fd`. An exception that nobody foresaw, in whichever thread, ends the process with its
    traceback."""
    end_with_threads()
    log_to_stderr()
    try:
        asyncio.run(_serve(spec, ready_fd))
    except StartError as error:
        if ready_fd is not None:
            send_failure(ready_fd, str(error))
        raise SystemExit(f"{spec.name}: {error}") from error


def log_to_stderr() -> None:
    """Our own lines from INFO on; those of libraries from WARNING on. No kind of them floods."""
    form = "%(asctime)s %(levelname).1s %(name)s: %(message)s"
    handler = logging.StreamHandler()
    limit_records(handler)
    logging.basicConfig(level=logging.WARNING, format=form, handlers=[handler])
    workers = ("worker", "prefill_worker", "decode_worker")
    for package in ("deploy", "router", *workers, "kvtransfer", "engine"):
        logging.getLogger(package).setLevel(logging.INFO)


def end_with_threads() -> None:
    """From now on what nobody foresaw in a thread ends the process, ranks and all: the launcher
    sees that. Otherwise a transport whose thread is gone would keep its pages for ever."""
    threading.excepthook = _end_process


def _end_process(thrown: threading.ExceptHookArgs) -> None:
    name = "a thread" if thrown.thread is None else f"thread {thrown.thread.name}"
    print(f"{name} broke:", file=sys.stderr)
    traceback.print_exception(thrown.exc_value)
    sys.stderr.flush()
    os._exit(1)


async def _serve(spec: ProcessSpec, ready_fd: int | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serving(spec) as where:
        if ready_fd is None:
            runs_on = f" ({where.runs_on})" if where.runs_on else ""
            print(f"{spec.name} serves at {where.endpoint}{runs_on}", flush=True)
            if where.worker_endpoint:
                print(f"{spec.name} hears workers at {where.worker_endpoint}", flush=True)
            if where.http_endpoint:
                print(f"{spec.name} speaks HTTP at {where.http_endpoint}", flush=True)
        else:
            send_ready(ready_fd, Ready(**asdict(where), pid=os.getpid()))
        await stop.wait()
