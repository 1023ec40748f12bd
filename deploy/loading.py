"""Lines of the log that say how far a model has been loaded: one a second, and one at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from engine.progress import Loaded

log = logging.getLogger(__name__)

EVERY_S = 1.0


class LoadingLines:
    """A `Progress` that logs. Time counts from its first call, when nothing has been read."""

    def __init__(self, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._clock = clock
        self._start_s: float | None = None
        self._told_s = 0.0

    def __call__(self, loaded: Loaded) -> None:
        now = self._clock()
        if self._start_s is None:
            self._start_s = self._told_s = now
        after_s = now - self._start_s
        rate = f"{_gb(loaded.n_bytes / after_s)} GB/s" if after_s else "at once"
        if loaded.tensors == loaded.of_tensors:
            log.info(
                "loaded %s: %d tensors, %s GB in %.1f s, %s",
                self._model, loaded.of_tensors, _gb(loaded.of_bytes), after_s, rate,
            )  # fmt: skip
        elif now - self._told_s >= EVERY_S:
            self._told_s = now
            log.info(
                "loading %s: %d of %d tensors, %s of %s GB, %s",
                self._model, loaded.tensors, loaded.of_tensors,
                _gb(loaded.n_bytes), _gb(loaded.of_bytes), rate,
            )  # fmt: skip


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f}" if n_bytes >= 1e8 else f"{n_bytes / 1e9:.3f}"
