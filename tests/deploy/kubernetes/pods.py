"""Pods of a fake API server with real agents, as processes of their own."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path

from twolane.deploy.process.evidence import read_evidence

_AGENT = (sys.executable, "-m", "twolane.deploy", "agent")
_NUMBERS = itertools.count(2)  # of addresses: every one in 127/8 is this machine's


class AgentPod:
    """`at_end`: the processes that it had when it was told to end."""

    def __init__(self, ip: str, folder: Path, process: asyncio.subprocess.Process) -> None:
        self.ip = ip
        self.at_end: list[str] | None = None
        self._folder = folder
        self._process = process

    def runs(self) -> list[str]:
        return [evidence.name for evidence in read_evidence(self._folder)]

    def epochs(self) -> set[int]:
        return {evidence.epoch for evidence in read_evidence(self._folder)}

    async def stop(self) -> None:
        if self.at_end is None:
            self.at_end = self.runs()
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            await self._process.wait()


class Pods:
    """Makes agents, all at the same `port`. `ended` are those that have been told to end."""

    def __init__(self, folder: Path, port: int, environment: dict[str, str]) -> None:
        self._folder = folder
        self._port = port
        self._environment = environment
        self.all: dict[str, AgentPod] = {}  # by pod and UID

    async def make(self, name: str, uid: str) -> AgentPod:
        """An agent in a new pod, which serves."""
        ip, folder = f"127.0.0.{next(_NUMBERS)}", self._folder / uid
        process = await asyncio.create_subprocess_exec(
            *_AGENT,
            *("--host-name", name, "--listen", f"{ip}:{self._port}", "--gpus", ""),
            *("--state-dir", str(folder), "--host-uid", uid, "--drain-s", "5"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, **self._environment},
        )
        assert process.stdout is not None
        assert await process.stdout.readline(), f"the agent of {name} does not serve"
        pod = self.all[f"{name} {uid}"] = AgentPod(ip, folder, process)
        return pod
