"""Detects the end of standard input, at which a cluster stops."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable


def read_stdin(loop: asyncio.AbstractEventLoop, at_end: Callable[[], None]) -> None:
    """A callback for `loop.add_reader`. Calls `at_end` once, when standard input ends."""
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        at_end()
