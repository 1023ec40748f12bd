"""Lines of the log that say how far a model has been loaded and made ready: one a second, and one
at the end of either."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from twolane.engine.progress import Loaded, Readied

log = logging.getLogger(__name__)

EVERY_S = 1.0


class LoadingLines:
    """A `Progress` that logs. Time counts from its first call, when nothing has been read, and
    that of making ready from the end of loading."""

    def __init__(self, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._clock = clock
        self._start_s: float | None = None
        self._told_s = 0.0

    def __call__(self, news: Loaded | Readied) -> None:
        now = self._clock()
        if self._start_s is None:
            self._start_s = self._told_s = now
        after_s = now - self._start_s
        if not news.is_last and now - self._told_s < EVERY_S:
            return
        self._told_s = now
        if isinstance(news, Loaded):
            self._tell_loaded(news, after_s)
        elif news.is_last:
            log.info("made %s ready: %d %s, in %.1f s", self._model, news.of, news.what, after_s)
        else:
            log.info("making %s ready: %d of %d %s", self._model, news.done, news.of, news.what)
        if news.is_last:
            self._start_s = now

    def _tell_loaded(self, loaded: Loaded, after_s: float) -> None:
        rate = f"{_gb(loaded.n_bytes / after_s)} GB/s" if after_s else "at once"
        if loaded.is_last:
            log.info(
                "loaded %s: %d tensors, %s GB in %.1f s, %s",
                self._model, loaded.of_tensors, _gb(loaded.of_bytes), after_s, rate,
            )  # fmt: skip
        else:
            log.info(
                "loading %s: %d of %d tensors, %s of %s GB, %s",
                self._model, loaded.tensors, loaded.of_tensors,
                _gb(loaded.n_bytes), _gb(loaded.of_bytes), rate,
            )  # fmt: skip


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f}" if n_bytes >= 1e8 else f"{n_bytes / 1e9:.3f}"
