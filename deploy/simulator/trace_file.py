"""A trace file: when requests arrived, and how long they were.

Two CSV formats are read, plain or gzipped, recognised by their header:

    arrival_ms,prompt_tokens,output_tokens            milliseconds since the first request
    TIMESTAMP,ContextTokens,GeneratedTokens           the Azure Public Dataset's, as published
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from twolane.deploy.simulator.requests import Requests

OURS = ["arrival_ms", "prompt_tokens", "output_tokens"]
AZURE = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
MOST_REQUESTS = 2_000_000
MOST_DAYS = 30  # from the first request to the last
_GZIP = b"\x1f\x8b"
_DAY_S = 86_400.0
_LAST_MS = 1e15  # of an arrival; a float holds these to a fraction of a millisecond


class TraceError(ValueError):
    """The file is not a trace that can be used. The message names the file, the line and why."""


def read_trace(path: Path) -> Requests:
    """Raises `TraceError`, also if the file cannot be read."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    return parse_trace(raw, path.name)


def parse_trace(raw: bytes, name: str) -> Requests:
    """The content of a file of that name. Raises `TraceError`."""
    try:
        text = (gzip.decompress(raw) if raw.startswith(_GZIP) else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{name}: not a CSV file in UTF-8, plain or gzipped: {error}") from error
    rows = _rows(text, name)
    _, header = next(rows, ("", []))
    if header not in (OURS, AZURE):
        raise TraceError(
            f"{name}: the first line is {','.join(header)[:80]!r}, not {','.join(OURS)} or "
            f"{','.join(AZURE)}"
        )
    seconds = _ours if header == OURS else _azure
    arrivals: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    for where, row in rows:
        if not row:
            continue
        if len(row) != 3:
            raise TraceError(f"{where}: {len(row)} fields instead of 3")
        try:
            at_s, n_prompt, n_output = seconds(row[0]), int(row[1]), int(row[2])
        except ValueError as error:
            raise TraceError(f"{where}: {str(error)[:200]}") from error
        if n_prompt < 1 or n_output < 1:
            raise TraceError(f"{where}: a request has at least one token each way")
        if n_prompt + n_output > 10_000_000:
            raise TraceError(f"{where}: {n_prompt + n_output} tokens in one request")
        if arrivals and at_s < arrivals[-1]:
            raise TraceError(f"{where}: it arrives before the line above it")
        if arrivals and (days := (at_s - arrivals[0]) / _DAY_S) > MOST_DAYS:
            unit = "; arrival_ms is in milliseconds" if header == OURS else ""
            raise TraceError(
                f"{where}: it arrives {days:,.4g} days after the first request, and {MOST_DAYS} "
                f"are the most{unit}"
            )
        if len(arrivals) == MOST_REQUESTS:
            raise TraceError(f"{name}: more than {MOST_REQUESTS:,} requests; take a part of it")
        arrivals.append(at_s)
        prompts.append(n_prompt)
        outputs.append(n_output)
    if not arrivals:
        raise TraceError(f"{name}: no request")
    times = np.array(arrivals)
    return Requests(times - times[0], np.array(prompts), np.array(outputs))


def _rows(text: str, name: str) -> Iterator[tuple[str, list[str]]]:
    """Each row, and where it begins: file and line. Raises `TraceError` if there is no such row."""
    rows = csv.reader(text.splitlines(), strict=True)
    while True:
        where = f"{name}, line {rows.line_num + 1}"
        try:
            yield where, next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise TraceError(f"{where}: {error}") from error


def _ours(text: str) -> float:
    value = float(text)
    if not 0 <= value <= _LAST_MS:
        raise ValueError(f"{text[:40]!r} is no time in milliseconds")
    return value / 1000


def _azure(text: str) -> float:
    """In seconds of UTC, which it is where the text names no time zone."""
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
