"""Whether the event loop keeps up with the tokens that come."""

from __future__ import annotations

WINDOW_S = 0.25
BUSY_SHARE = 0.65  # of a window that went into tokens; what else the loop does comes on top


class Pressure:
    """Told of each spell of work on tokens, in seconds of the loop's clock."""

    def __init__(self) -> None:
        self.is_behind = False  # as of the last window
        self._window_began = 0.0
        self._busy_s = 0.0

    def note(self, began: float, ended: float) -> None:
        self._busy_s += ended - began
        window_s = ended - self._window_began
        if window_s >= WINDOW_S:
            self.is_behind = self._busy_s > BUSY_SHARE * window_s
            self._window_began, self._busy_s = ended, 0.0
