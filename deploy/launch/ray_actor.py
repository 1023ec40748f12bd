"""A Ray actor that runs one router or worker in its process, on its own event loop thread.

Ray carries three calls in an actor's life: pid, start, stop. Requests, tokens and pages travel over
gRPC and the transports, as they do between plain processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from concurrent.futures import Future
from dataclasses import asdict

from twolane.deploy.errors import StartError
from twolane.deploy.process.child import doors_in_words, end_with_threads, log_to_stderr
from twolane.deploy.process.handshake import Ready
from twolane.deploy.process.parent_death import die_with
from twolane.deploy.process.serving import serving
from twolane.deploy.spec.devices import environment_of
from twolane.deploy.spec.spec_json import from_json
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec, WorkerSpec


class ServiceActor:
    """`twolane.deploy.launch.ray_launcher` makes it remote. A failure of the service ends the
    process; it is never raised from a call."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._ready: Future[Ready] = Future()
        self._thread: threading.Thread | None = None

    def pid(self) -> int:
        return os.getpid()

    def start(self, kind: str, spec: str, log: str, launcher_pid: int) -> Ready:
        """Start serving, and return when it serves. Raises `StartError`. Output goes to `log`."""
        with open(log, "ab", buffering=0) as output:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                os.dup2(output.fileno(), stream.fileno())
        if os.getpgrp() != os.getpid():
            os.setpgid(
                0,
                0,
                # so that the launcher finds the ranks
                # (`twolane.deploy.process.parent_death.end_group`)
            )
        die_with(launcher_pid)
        end_with_threads()  # as in a plain process; here the service runs on a thread, too
        parsed: ProcessSpec
        parsed = from_json(RouterSpec, spec) if kind == "router" else from_json(WorkerSpec, spec)
        log_to_stderr(parsed.log_level)
        self._thread = threading.Thread(target=self._run, args=(parsed,), name="service")
        self._thread.start()
        return self._ready.result()

    def stop(self) -> None:
        """Stop cleanly; returns when the service has ended."""
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self, spec: ProcessSpec) -> None:
        os.environ.update(environment_of(spec))  # Ray only counts GPUs; the topology says which
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve(spec))
        except StartError as error:
            if self._ready.done():  # it was serving: end the process
                raise
            self._ready.set_exception(error)

    async def _serve(self, spec: ProcessSpec) -> None:
        async with serving(spec) as where:
            for line in doors_in_words(spec.name, where):
                logging.getLogger(__name__).info("%s", line)
            self._ready.set_result(Ready(**asdict(where), pid=os.getpid()))
            await self._stop.wait()
