"""A trace file: when requests arrived, and how long they were.

Two CSV formats are read, plain or gzipped, recognised by their header:

    arrival_ms,prompt_tokens,output_tokens            milliseconds since the first request
    TIMESTAMP,ContextTokens,GeneratedTokens           the Azure Public Dataset's, as published
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from datetime import datetime
from pathlib import Path

import numpy as np

from twolane.deploy.simulator.requests import Requests

OURS = ["arrival_ms", "prompt_tokens", "output_tokens"]
AZURE = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
MOST_REQUESTS = 2_000_000


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
        text = (gzip.decompress(raw) if name.endswith(".gz") else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{name}: not a CSV file in UTF-8, plain or gzipped: {error}") from error
    rows = csv.reader(text.splitlines())
    header = next(rows, [])
    if header not in (OURS, AZURE):
        raise TraceError(
            f"{name}: the first line is {','.join(header)[:80]!r}, not {','.join(OURS)} or "
            f"{','.join(AZURE)}"
        )
    seconds = _ours if header == OURS else _azure
    arrivals: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    for row in rows:
        if not row:
            continue
        where = f"{name}, line {rows.line_num}"
        if len(row) != 3:
            raise TraceError(f"{where}: {len(row)} fields instead of 3")
        try:
            at_s, n_prompt, n_output = seconds(row[0]), int(row[1]), int(row[2])
        except ValueError as error:
            raise TraceError(f"{where}: {error}") from error
        if n_prompt < 1 or n_output < 1:
            raise TraceError(f"{where}: a request has at least one token each way")
        if n_prompt + n_output > 10_000_000:
            raise TraceError(f"{where}: {n_prompt + n_output} tokens in one request")
        if arrivals and at_s < arrivals[-1]:
            raise TraceError(f"{where}: it arrives before the line above it")
        if len(arrivals) == MOST_REQUESTS:
            raise TraceError(f"{name}: more than {MOST_REQUESTS:,} requests; take a part of it")
        arrivals.append(at_s)
        prompts.append(n_prompt)
        outputs.append(n_output)
    if not arrivals:
        raise TraceError(f"{name}: no request")
    times = np.array(arrivals)
    return Requests(times - times[0], np.array(prompts), np.array(outputs))


def _ours(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{text!r} is no time in milliseconds")
    return value / 1000


def _azure(text: str) -> float:
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
