"""Follows what a starting process logs about loading its model (`twolane.deploy.process.loading`).
It reads the log, because every kind of launcher has one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

# The logger's name, as `twolane.deploy.process.child.log_to_stderr` writes it
_MARK = " twolane.deploy.process.loading: "


class LoadingNews:
    """Reads new lines of one log. It begins at the log's current end, because earlier incarnations
    wrote to the same file."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._at = log.stat().st_size if log.exists() else 0

    def latest(self) -> str:
        """The last line about loading since the last call; empty if there is none."""
        if not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            file.seek(self._at)
            whole, end, _ = file.read().rpartition(b"\n")  # the last line may be incomplete
        self._at += len(whole) + len(end)
        lines = whole.decode("utf-8", errors="replace").splitlines()
        return next((line.partition(_MARK)[2] for line in reversed(lines) if _MARK in line), "")


async def tell_loading(log: Path, tell: Callable[[str], None], every_s: float) -> None:
    """Until cancelled, poll every `every_s` seconds and report the last line if there is a new
    one."""
    news = LoadingNews(log)
    while True:
        await asyncio.sleep(every_s)
        if text := news.latest():
            tell(text)
