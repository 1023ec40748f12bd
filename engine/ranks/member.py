"""A rank's process: loads its part of the model, then computes the steps that it receives.

    python -m twolane.engine.ranks.member FD

It exits when its group tells it to, and at once when the group's process is gone; even during a
step, in which it may be waiting for another rank that will never answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from twolane.engine.config import EngineConfig
from twolane.engine.progress import Loaded, Progress, Readied
from twolane.engine.ranks.channel import Channel, Kind
from twolane.engine.ranks.messages import StepReader, encode_digest, encode_results
from twolane.engine.ranks.place import Place
from twolane.engine.step import Engine, Step

_PROGRESS_EVERY_S = 0.2


Load = Callable[[EngineConfig, Place, Progress], Engine]


def main(fd: int, load: Load) -> None:
    """Does not return: Python's cleanup would take seconds, and the process ends anyway."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the parent process
        signal.signal(number, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=fd))
    threading.Thread(target=_end_with_group, args=(fd,), name="watch", daemon=True).start()
    _report_errors_to(channel)
    frame = channel.receive()
    if frame is None:
        os._exit(1)
    config, place = _read_start(frame)
    engine = load(config, place, _progress(place, channel))
    pool = engine.device_pool
    channel.send_json(
        Kind.READY,
        {
            "engine": {"spec": asdict(engine.spec), "steps_ahead": engine.steps_ahead},
            "exports": [] if pool is None else [part.hex() for part in pool.exports],
        },
    )
    _serve(engine, place, channel)
    engine.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _read_start(frame: tuple[Kind, bytes]) -> tuple[EngineConfig, Place]:
    kind, body = frame
    assert kind is Kind.START, kind
    start = json.loads(body)
    facts = start["config"] | {"model_dir": Path(start["config"]["model_dir"])}
    return EngineConfig(**facts), Place(**start["place"])


def _progress(place: Place, channel: Channel) -> Progress:
    sent_s = 0.0

    def progress(news: Loaded | Readied) -> None:
        nonlocal sent_s
        now = time.monotonic()
        if place.rank == 0 and (news.is_last or now - sent_s > _PROGRESS_EVERY_S):
            sent_s = now
            channel.send_json(Kind.PROGRESS, [type(news).__name__, *news])

    return progress


def _serve(engine: Engine, place: Place, channel: Channel) -> None:
    """Submit steps as they arrive; another thread waits for results, since the engine may be
    pipelined."""
    reader = StepReader()
    in_flight: queue.SimpleQueue[tuple[int, Step] | None] = queue.SimpleQueue()
    encode = encode_results if place.rank == 0 else encode_digest

    def answer() -> None:
        while (step := in_flight.get()) is not None:
            channel.send(Kind.RESULT, encode(step[0], step[1].result()))

    answers = threading.Thread(target=answer, name="answers")
    answers.start()
    while True:
        frame = channel.receive()
        if frame is None or frame[0] is Kind.CLOSE:
            break
        number, work = reader.decode(frame[1])
        in_flight.put((number, engine.submit(work)))
    in_flight.put(None)
    answers.join()


def _end_with_group(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    poll.poll()
    os._exit(1)


def _report_errors_to(channel: Channel) -> None:
    """An error on any thread is reported as this rank's final frame."""

    def report(kind: type[BaseException], error: BaseException | None) -> None:
        with contextlib.suppress(OSError):  # the group is gone
            channel.send_json(Kind.FAILED, [kind.__name__, str(error)])
        sys.stderr.flush()
        os._exit(1)

    def on_main(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        sys.__excepthook__(kind, error, traceback)
        report(kind, error)

    def on_thread(thrown: threading.ExceptHookArgs) -> None:
        threading.__excepthook__(thrown)
        report(thrown.exc_type, thrown.exc_value)

    sys.excepthook = on_main
    threading.excepthook = on_thread


if __name__ == "__main__":
    from twolane.engine.ranks.joining import load_rank  # torch: tests of the rest do without

    main(int(sys.argv[1]), load_rank)
