"""The end of a process on this host, which is proven or not yet known, and never missed."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.until import until
from twolane.deploy.launch.host_process import HostProcess


def sleeping() -> HostProcess:
    popen = subprocess.Popen(["sleep", "60"], start_new_session=True)
    popen.returncode = 0  # `HostProcess` reaps it
    return HostProcess(popen.pid, os.pidfd_open(popen.pid), is_child=True)


async def test_a_death_is_told_once_there_is_a_descriptor_to_look_at_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_looks, listdir = 0, os.listdir

    def is_short(path: Path) -> list[str]:
        nonlocal n_looks
        n_looks += 1
        if n_looks <= 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return listdir(path)

    process = sleeping()
    monkeypatch.setattr(os, "listdir", is_short)
    killing = asyncio.create_task(process.kill())
    await until(killing.done, within_s=20.0)
    assert await killing == "killed by SIGKILL"
    assert n_looks > 3
