"""How long tokens wait for others of their answer at most, so that the event loop keeps up.

    the loop is busy        they wait at most
    below 50 % of a window  half as long as before; not at all below 10 ms
    above 70 %              twice as long, 10 to 80 ms

While the loop keeps up, each token goes out at once. Otherwise it goes with the next one, which
comes a step of its worker later, and with all that come late in between; if a step is longer than
they wait at most, it goes alone, at once. A message costs about as
much with several tokens as with one, and a loop that would be full with tokens, or with calls that
it refuses, has time again.
"""

from __future__ import annotations

WINDOW_S = 0.25
QUIET_SHARE = 0.5
BUSY_SHARE = 0.7
MIN_PAUSE_S = 0.01
MAX_PAUSE_S = 0.08


class Pressure:
    """Follows the share of time that the event loop is busy, in windows of `WINDOW_S`."""

    def __init__(self) -> None:
        self.pause_s = 0.0  # how long tokens wait now
        self._window_began: float | None = None
        self._idle_s = 0.0  # at that time

    def note(self, now: float, idle_s: float) -> None:
        """`idle_s` is how long the loop has been idle in all. Call it often."""
        if self._window_began is None:
            self._window_began, self._idle_s = now, idle_s
        window_s = now - self._window_began
        if window_s < WINDOW_S:
            return
        busy = 1.0 - (idle_s - self._idle_s) / window_s
        self._window_began, self._idle_s = now, idle_s
        if busy > BUSY_SHARE:
            self.pause_s = min(max(2 * self.pause_s, MIN_PAUSE_S), MAX_PAUSE_S)
        elif busy < QUIET_SHARE:
            self.pause_s = self.pause_s / 2 if self.pause_s > MIN_PAUSE_S else 0.0
