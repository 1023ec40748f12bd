"""A recorded workload: when requests arrived and how long they were.

Two CSV formats are read, as `twolane plan` reads them (`twolane.deploy.simulator.trace_file`).
`python -m benchmarks.traffic.trace IN OUT` rewrites Azure's as ours.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from twolane.deploy.simulator.trace_file import OURS, TraceError
from twolane.deploy.simulator.trace_file import read_trace as read_requests

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

__all__ = ["BUNDLED", "Trace", "TraceError", "read_trace", "write_trace"]
BUNDLED = Path(__file__).parents[1] / "workloads"


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
    found = read_requests(path)
    return Trace(found.arrivals_s, found.prompt_tokens, found.output_tokens)


def write_trace(trace: Trace, path: Path) -> None:
    """Write our format, gzipped, the same bytes for the same trace."""
    lines = [",".join(OURS)]
    for at_s, n_prompt, n_output in zip(
        trace.arrivals_s, trace.prompt_tokens, trace.output_tokens, strict=True
    ):
        lines.append(f"{round(at_s * 1000)},{n_prompt},{n_output}")
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), 9, mtime=0))


@click.command(help="Rewrite a published Azure trace in the compact form.")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
def main(source: Path, target: Path) -> None:
    write_trace(read_trace(source), target)


if __name__ == "__main__":
    main()
