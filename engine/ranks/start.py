"""Starts the ranks of a group."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from twolane.engine.config import EngineConfig
from twolane.engine.parallel.pool_file import PoolFile
from twolane.engine.progress import Progress
from twolane.engine.ranks.channel import Channel
from twolane.engine.ranks.group import SILENT_AFTER_S, Member, RankGroup

MEMBER_COMMAND = (sys.executable, "-m", "twolane.engine.ranks.member")


def start_ranks(
    config: EngineConfig,
    *,
    progress: Progress | None = None,
    silent_after_s: float = SILENT_AFTER_S,
    command: Sequence[str] = MEMBER_COMMAND,
    pool_memory: memoryview | None = None,
    pool_fd: int | None = None,
) -> RankGroup:
    """Start `config.tensor_parallel` ranks and wait until each has loaded its part of the model.

    `config.device` is resolved: `cpu`, or `cuda`, where rank i uses the i-th GPU visible to this
    process. `pool_memory` and the file `pool_fd` that it maps may be given for pages on a CPU: the
    caller owns them. Raises what an engine raises, or RankLostError; nothing is left running then.

    Another `command` must behave like `twolane.engine.ranks.member`; tests pass doubles.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"twolane-{os.getpid()}-"))
    facts = asdict(config) | {"model_dir": str(config.model_dir)}
    file = PoolFile(pool_fd, pool_memory)
    members: list[Member] = []
    try:
        for rank in range(config.tensor_parallel):
            member = _spawn(rank, command, file, silent_after_s)
            members.append(member)  # at once: it is ended if a later one cannot start
    except BaseException:
        for member in members:
            member.process.kill()
            member.process.wait()
            member.channel.close()
        file.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    group = RankGroup(members, folder, file, progress=progress, silent_after_s=silent_after_s)
    place = {"ranks": len(members), "store": str(folder / "store"), "pool_fd": file.fd}
    group.start({"config": facts, "place": place})
    group.wait_ready()
    return group


def _spawn(rank: int, command: Sequence[str], file: PoolFile, silent_after_s: float) -> Member:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            channel = Channel(ours, send_within_s=silent_after_s)
            process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), file.fd],
            )
        except BaseException:
            ours.close()
            raise
    return Member(rank, process, channel)


def _environment() -> dict[str, str]:
    """Our environment, extended so that the ranks import the code that we run, wherever it is."""
    root = str(Path(__file__).parents[3])  # the folder that holds the package twolane
    others = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{others}" if others else root}
