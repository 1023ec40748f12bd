"""The last lines of a process's log file, which outlives the process."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from twolane.rpc.log_tail import LINE_CHARS, MOST_LINES
from twolane.v1 import acts_pb2

LINES = 100  # if the caller asks for no number
_MOST_BYTES = 1 << 20  # are read, from the end of the file


@dataclass(frozen=True, slots=True)
class FoundLog:
    """`age_s`: how long ago the file was last written."""

    response: acts_pb2.ReadLogResponse
    age_s: float


def read_log_file(folder: Path, request: acts_pb2.ReadLogRequest, source: str) -> FoundLog | None:
    """The log of the process that the request names, which all its incarnations share; None if
    the folder has none. A line's number is the byte at which it ends in the file; one that has no
    end yet is left for the next read. `source` names the reader. Raises OSError if the file cannot
    be read."""
    # The name comes from afar: only a file that is in the folder is read.
    path = next((path for path in folder.glob("*.log") if path.stem == request.name), None)
    if path is None:
        return None
    after = request.after_line if request.source == source else 0
    try:
        file = path.open("rb")
    except FileNotFoundError:  # since the folder was listed
        return None
    with file:
        size = file.seek(0, 2)
        age_s = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
        after = after if after <= size else 0
        start = max(after, size - _MOST_BYTES)
        file.seek(start)
        raw = file.read(size - start)
    raw = raw[: raw.rfind(b"\n") + 1]
    end = start + len(raw) if raw else after
    if start > after:
        raw = raw[raw.find(b"\n") + 1 :]  # its first line is not whole
    n = min(request.lines or LINES, MOST_LINES)
    lines = raw.decode(errors="replace").splitlines()[-n:]
    return FoundLog(
        acts_pb2.ReadLogResponse(
            lines=[line[:LINE_CHARS] for line in lines], last_line=end, source=source
        ),
        age_s,
    )
