"""One line of progress of a run: answered, within the SLO, failed, tokens per second."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.load.record import Record, Slo

_WIDTH = 170


def make_console() -> Console:
    """A console wide enough for our tables if its width is unknown."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


class RunProgress:
    """A context manager around one run; `note` each record as it comes."""

    def __init__(self, title: str, n_requests: int, slo: Slo, console: Console) -> None:
        self._slo = slo
        self._held = self._failed = self._done = self._tokens = 0
        self._began_s = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[news]}"),
            console=console,
            refresh_per_second=2,  # drawing takes time from what is measured
        )
        self._task = self._progress.add_task(title, total=n_requests, news="")

    def __enter__(self) -> RunProgress:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def note(self, record: Record) -> None:
        """Count one answer (or failure) in."""
        self._done += 1
        self._held += self._slo.is_held(record)
        self._failed += not record.is_complete
        self._tokens += len(record.token_times_s)
        rate = self._tokens / max(1e-3, time.monotonic() - self._began_s)
        news = f"held {self._held / self._done:.2f}  failed {self._failed}  {rate:,.0f} tokens/s"
        self._progress.update(self._task, advance=1, news=news)
