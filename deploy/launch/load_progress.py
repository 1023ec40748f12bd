"""What a process that is starting writes to its log about loading
(`twolane.deploy.process.loading`), for whoever waits for it. The log is what every launcher has in
common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

# The logger's name, as `twolane.deploy.process.child.log_to_stderr` writes it
_MARK = " twolane.deploy.process.loading: "


class LoadingNews:
    """Of one log, from now on: earlier incarnations write to the same file."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._at = log.stat().st_size if log.exists() else 0

    def latest(self) -> str:
        """The last such line since the last call; empty if there is none."""
        if not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            file.seek(self._at)
            whole, end, _ = file.read().rpartition(b"\n")  # a line may be half written
        self._at += len(whole) + len(end)
        lines = whole.decode("utf-8", errors="replace").splitlines()
        return next((line.partition(_MARK)[2] for line in reversed(lines) if _MARK in line), "")


async def tell_loading(log: Path, tell: Callable[[str], None], every_s: float) -> None:
    """Until cancelled, tell what is new, in so many seconds each."""
    news = LoadingNews(log)
    while True:
        await asyncio.sleep(every_s)
        if text := news.latest():
            tell(text)
