"""A worker process whose transport's thread breaks in a way that nobody foresaw, once it serves.

    python -m tests.deploy.broken_thread_process LAUNCHER LOG

LAUNCHER is whose process it is: `process` or `ray`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest import mock

from tests.deploy.clusters import model_with
from twolane.deploy.launch.ray_actor import ServiceActor
from twolane.deploy.process.child import run_process
from twolane.deploy.process.serving import Where
from twolane.deploy.spec.spec_json import to_json
from twolane.deploy.spec.specs import ProcessSpec, WorkerSpec
from twolane.kvtransfer.transports.common.thread import TransportThread

SPEC = WorkerSpec(
    worker_id="w", epoch=1, roles=("decode",), model=model_with(model_dir="", name="m"), routers=()
)


class Broken(TransportThread[None]):
    def __init__(self) -> None:
        super().__init__("landing")
        self._start()

    def _turn(self) -> None:
        self._wait()
        raise ZeroDivisionError("no such luck")


@asynccontextmanager
async def serving(spec: ProcessSpec) -> AsyncIterator[Where]:
    end = Broken()
    end._order(lambda: None)
    yield Where("here", "there")


def main(launcher: str, log: str) -> None:
    if launcher == "process":
        with mock.patch("twolane.deploy.process.child.serving", serving):
            run_process(SPEC, None)
    else:
        with mock.patch("twolane.deploy.launch.ray_actor.serving", serving):
            ServiceActor().start("worker", to_json(SPEC), log, os.getppid())
            time.sleep(120)


if __name__ == "__main__":
    main(*sys.argv[1:])
