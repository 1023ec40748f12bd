"""Decides how long to wait before a dead process is restarted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartConfig:
    """The first restart is immediate; each further one within `calm_s` of the last waits longer.
    A router that has served for `well_s` starts again at once, however often: whatever killed it
    was not its start, and it takes no GPU that a dying worker would."""

    first_delay_s: float = 0.5
    most_delay_s: float = 30.0
    calm_s: float = 60.0
    well_s: float = 3.0


class RestartPolicy:
    """Counts the deaths of one process. It reads no clock: the caller passes the time in
    seconds."""

    def __init__(self, config: RestartConfig) -> None:
        self._config = config
        self._last_death: float | None = None
        self._in_a_row = 0

    def served(self, served_s: float) -> None:
        """A router has died that had served for so long."""
        if served_s >= self._config.well_s:
            self._last_death = None

    def delay_s(self, now: float) -> float:
        """The process died, or failed to start, at `now`. Returns the seconds to wait before the
        next start."""
        config = self._config
        if self._last_death is None or now - self._last_death > config.calm_s:
            self._in_a_row = 0
        self._last_death = now
        self._in_a_row += 1
        if self._in_a_row == 1:
            return 0.0
        return min(config.most_delay_s, config.first_delay_s * 2.0 ** (self._in_a_row - 2))
