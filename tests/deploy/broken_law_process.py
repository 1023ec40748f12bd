"""A worker process in which a law of ours breaks when a transport wakes it, once it serves.

python -m tests.deploy.broken_law_process
"""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

from tests.deploy.clusters import model_with
from twolane.deploy.bundled import model_path
from twolane.deploy.process.child import run_process
from twolane.deploy.spec.settings import WorkerSettings
from twolane.deploy.spec.specs import WorkerSpec
from twolane.kvtransfer.receive.receiver import Receiver
from twolane.kvtransfer.transport import Wake
from twolane.kvtransfer.transports.stream.landing import StreamLanding

MODEL = model_with(model_dir=str(model_path()), name="m", engine="fake", n_pages=8)
SPEC = WorkerSpec(
    worker_id="w",
    epoch=1,
    roles=("decode",),
    model=MODEL,
    routers=(),
    settings=WorkerSettings(transports=("tcp",)),
)


def broken(receiver: Receiver, now: float) -> Any:
    raise AssertionError("page 7 was released more often than it was taken")


def wake_soon(landing: StreamLanding, wake: Wake) -> None:
    threading.Timer(0.2, wake).start()


if __name__ == "__main__":
    with (
        mock.patch.object(Receiver, "poll", broken),
        mock.patch.object(StreamLanding, "set_wake", wake_soon),
    ):
        run_process(SPEC, None)
