"""A recorded workload: when requests arrived and how long they were.

Two CSV formats are read, plain or gzipped, recognised by their header:

    arrival_ms,prompt_tokens,output_tokens            ours: milliseconds since the first request
    TIMESTAMP,ContextTokens,GeneratedTokens           the Azure Public Dataset's, as published

`python -m benchmarks.traffic.trace IN OUT` rewrites the second as the first.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

BUNDLED = Path(__file__).parents[1] / "workloads"
_OURS = ["arrival_ms", "prompt_tokens", "output_tokens"]
_AZURE = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


class TraceError(ValueError):
    """The file is not a trace; the message says which line and why."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival; the first arrives at 0. Every request has at least one token
    each way."""

    arrivals_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray

    def __post_init__(self) -> None:
        n = len(self.arrivals_s)
        if not n == len(self.prompt_tokens) == len(self.output_tokens):
            raise TraceError("the columns are not of one length")
        if n == 0:
            raise TraceError("no requests")
        if self.arrivals_s[0] != 0 or (np.diff(self.arrivals_s) < 0).any():
            raise TraceError("arrivals are not in order from 0")
        if min(self.prompt_tokens.min(), self.output_tokens.min()) < 1:
            raise TraceError("a request without tokens")

    def __len__(self) -> int:
        return len(self.arrivals_s)

    @property
    def rate_per_s(self) -> float:
        """Mean rate over the whole trace."""
        return (len(self) - 1) / float(self.arrivals_s[-1])

    def window(self, start: int, n: int) -> Trace:
        """Requests [start, start + n), with time counted from the first of them."""
        part = slice(start, start + n)
        arrivals_s = self.arrivals_s[part]
        return Trace(arrivals_s - arrivals_s[0], self.prompt_tokens[part], self.output_tokens[part])


def read_trace(path: Path) -> Trace:
    """Raises `TraceError` if the file has neither format."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    rows = csv.reader(text.splitlines())
    header = next(rows, [])
    if header not in (_OURS, _AZURE):
        raise TraceError(f"{path.name}: the header is {header}, not {_OURS} or {_AZURE}")
    try:
        columns = [(_seconds(row[0]), int(row[1]), int(row[2])) for row in rows if row]
    except (ValueError, IndexError) as error:
        raise TraceError(f"{path.name}, line {rows.line_num}: {error}") from error
    table = np.array(columns, np.float64).reshape(-1, 3)
    start_s = table[:1, 0].sum()
    return Trace(table[:, 0] - start_s, table[:, 1].astype(np.int64), table[:, 2].astype(np.int64))


def write_trace(trace: Trace, path: Path) -> None:
    """Write our format, gzipped, the same bytes for the same trace."""
    lines = [",".join(_OURS)]
    for at_s, n_prompt, n_output in zip(
        trace.arrivals_s, trace.prompt_tokens, trace.output_tokens, strict=True
    ):
        lines.append(f"{round(at_s * 1000)},{n_prompt},{n_output}")
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), 9, mtime=0))


def _seconds(stamp: str) -> float:
    if "-" not in stamp:
        return int(stamp) / 1000
    whole, _, fraction = stamp.partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")


@click.command(help="Rewrite a published Azure trace in the compact form.")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
def main(source: Path, target: Path) -> None:
    write_trace(read_trace(source), target)


if __name__ == "__main__":
    main()
