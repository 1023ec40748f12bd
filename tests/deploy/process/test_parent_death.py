"""What is left of a process group is looked at, or an error: it is never taken for nothing."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.deploy.hidden_folders import hide_folders
from twolane.deploy.process.parent_death import end_group, group_members


@pytest.fixture
def leader() -> Iterator[int]:
    """Of a group with two other processes."""
    group = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60"], start_new_session=True)
    while len(group_members(group.pid)) != 2:
        assert group.poll() is None
    yield group.pid
    os.killpg(group.pid, signal.SIGKILL)
    group.wait()


@contextmanager
def no_descriptor() -> Iterator[None]:
    """None is free in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_free_descriptor_a_group_is_not_called_empty(leader: int) -> None:
    """From Python 3.12 on, `Path.glob` finds nothing then."""
    with no_descriptor(), pytest.raises(OSError, match="Too many open files"):
        group_members(leader)


def test_what_cannot_be_looked_at_is_not_called_empty(
    leader: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_folders(monkeypatch)
    with pytest.raises(PermissionError):
        group_members(leader)


async def test_the_end_of_a_group_waits_for_a_free_descriptor(leader: int) -> None:
    with no_descriptor():
        ending = asyncio.create_task(end_group(leader))
        await asyncio.sleep(0.1)
        assert not ending.done()
    async with asyncio.timeout(60):
        await ending
    assert not group_members(leader)
