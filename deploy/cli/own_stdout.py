"""Standard output of a command that connects to Ray.

Ray writes to the standard output of every process that is connected to it. A thread of the driver
prints what happens on the nodes ("The node with node id ... has been marked dead"), some of it as
late as at exit, and Ray's C++ parts write to descriptor 1. Scripts parse what our commands print.
"""

from __future__ import annotations

import os
from typing import TextIO


def take_over(stdout: TextIO, *, others: int) -> TextIO:
    """Return standard output for the caller's own lines. From now until the process ends, whatever
    else it writes there goes to the descriptor `others`. Call it before Ray is imported."""
    stdout.flush()
    ours = os.fdopen(os.dup(stdout.fileno()), "w", buffering=1, encoding=stdout.encoding)
    os.dup2(others, stdout.fileno())
    return ours
