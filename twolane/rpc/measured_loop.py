"""An event loop that knows how busy it is.

    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        runner.run(main())

It is idle while it waits for I/O or for its next timer. The rest of the time it runs callbacks, or
would if it had the processor, so a loop that is never idle has fallen behind. The length of its
turns does not show that: gRPC hands it a few calls a turn, and keeps the others itself.
"""

from __future__ import annotations

import asyncio
import selectors
import time


class _TimedSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:  # there are callbacks to run
            return super().select(timeout)
        began = time.perf_counter()
        try:
            return super().select(timeout)
        finally:
            self.waited_s += time.perf_counter() - began


class MeasuredLoop(asyncio.SelectorEventLoop):
    """See the module's docstring."""

    def __init__(self) -> None:
        self._timed = _TimedSelector()
        super().__init__(self._timed)

    @property
    def idle_s(self) -> float:
        """How long it has been idle since it was made."""
        return self._timed.waited_s
