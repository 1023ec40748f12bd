"""A flood of log records of one kind is a few lines, and one that counts the rest."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from twolane.deploy.process.child import log_to_stderr
from twolane.deploy.process.log_limit import LogLimit


@dataclass
class Log:
    """A logger, what its handler wrote, and a clock that the test moves."""

    logger: logging.Logger
    limit: LogLimit
    out: io.StringIO
    clock: list[float] = field(default_factory=list)

    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()


@pytest.fixture
def log() -> Iterator[Log]:
    out, clock = io.StringIO(), [0.0]
    handler = logging.StreamHandler(out)
    limit = LogLimit(handler, per_s=3, kinds=5, now=lambda: clock[0])
    handler.addFilter(limit)
    logger = logging.getLogger("tests.log_limit")
    logger.propagate = False
    logger.addHandler(handler)
    yield Log(logger, limit, out, clock)
    logger.removeHandler(handler)


def test_a_flood_is_a_few_lines_and_one_that_counts_the_rest(log: Log) -> None:
    for number in range(1000):
        log.logger.warning("connection %d was refused", number)
    assert log.lines() == [f"connection {number} was refused" for number in range(3)]
    log.clock[0] = 1.0
    log.logger.warning("something else")
    assert log.lines()[3:] == [
        "997 more like it were not logged: connection 999 was refused",
        "something else",
    ]


def test_tracebacks_of_a_flood_are_held_back_too(log: Log) -> None:
    for _ in range(100):
        try:
            raise OSError(24, "Too many open files")
        except OSError:
            log.logger.exception("socket.accept() out of system resource")
    assert log.out.getvalue().count("Traceback") == 3


def test_other_kinds_pass_while_one_floods(log: Log) -> None:
    for _ in range(10):
        log.logger.warning("flood")
    log.logger.warning("worker %s is gone", "d0")
    log.logger.error("flood")  # of another level
    assert log.lines() == ["flood"] * 3 + ["worker d0 is gone", "flood"]


def test_messages_that_differ_in_numbers_are_one_kind(log: Log) -> None:
    for number in range(10):
        log.logger.warning(f"fd={number} is bad")
    assert len(log.lines()) == 3


def test_a_kind_may_pass_again_in_the_next_second(log: Log) -> None:
    for second in range(4):
        log.clock[0] = float(second)
        for _ in range(2):
            log.logger.warning("twice a second")
    assert log.lines() == ["twice a second"] * 8


def test_the_rest_is_told_at_the_end(log: Log) -> None:
    for _ in range(5):
        log.logger.warning("flood")
    log.limit.tell()
    log.limit.tell()
    assert log.lines()[3:] == ["2 more like it were not logged: flood"]


def test_the_kinds_that_are_remembered_are_bounded(log: Log) -> None:
    for letter in "abcdefghijklmnop":
        log.logger.warning("kind " + letter)
    assert len(log.limit._kinds) == 5


def test_every_process_logs_within_this_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    log_to_stderr()
    log_to_stderr()
    assert len(root.handlers) == 2, "standard error, and the tail in memory"
    for handler in root.handlers:
        assert [type(limit) for limit in handler.filters] == [LogLimit]


def test_grpcs_core_writes_nothing_for_what_a_peer_sends() -> None:
    """It is asked in a process of its own: the core reads its variable when it is loaded."""
    code = (
        "import deploy, asyncio, grpc\n"
        "from twolane.rpc.channel_options import DOOR_SERVER_OPTIONS\n"
        "async def main():\n"
        "    server = grpc.aio.server(options=DOOR_SERVER_OPTIONS)\n"
        "    port = server.add_insecure_port('127.0.0.1:0')\n"
        "    await server.start()\n"
        "    async with grpc.aio.insecure_channel(f'127.0.0.1:{port}') as channel:\n"
        "        try:\n"
        "            await channel.unary_unary('/a/b')(b'x', compression=grpc.Compression.Gzip)\n"
        "        except grpc.aio.AioRpcError as error:\n"
        "            assert 'is disabled' in error.details(), error\n"
        "    await server.stop(30)\n"
        "    if left := asyncio.all_tasks() - {asyncio.current_task()}:\n"  # of refused calls
        "        await asyncio.wait(left, timeout=30)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
