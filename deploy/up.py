"""`python -m deploy.up`, which `twolane up` becomes.

Imports little: a Ctrl-C while the rest is still being imported makes one line, no traceback.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

_STOPS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Run the command. Until its event loop takes the signals over, they end the process here."""
    for number in _STOPS:
        signal.signal(number, _stop)
    from deploy.up_command import up

    up(prog_name="twolane up")


def _stop(number: int, frame: FrameType | None) -> None:
    """Nothing has been started yet. As a shell has it, the exit code is 128 + the signal."""
    for other in _STOPS:
        signal.signal(other, signal.SIG_IGN)  # leave the ending in peace
    print("stopped", file=sys.stderr, flush=True)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
