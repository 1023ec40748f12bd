"""The clock and the power of this GPU while something runs on it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import torch

PERIOD_MS = 100
_STOP_S = 10.0

Sample = tuple[float, float]  # MHz of the SMs, watts


@contextmanager
def card_samples() -> Iterator[list[Sample]]:
    """Ask nvidia-smi ten times a second, within the block, for the current CUDA device. Once the
    block has ended the list has the samples, in order of time; none where the card tells neither.
    FileNotFoundError without nvidia-smi."""
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    query = ("--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits")
    command = ["nvidia-smi", f"--id=GPU-{uuid}", *query, f"--loop-ms={PERIOD_MS}"]
    samples: list[Sample] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield samples
        finally:
            process.terminate()
            printed, _ = process.communicate(timeout=_STOP_S)
    samples += parse(printed)


def late_half(samples: Sequence[Sample]) -> tuple[float | None, float | None]:
    """The medians (MHz, watts) of the second half of the samples, None without any."""
    late = samples[len(samples) // 2 :]
    if not late:
        return None, None
    return median(clock for clock, _ in late), median(watts for _, watts in late)


def parse(printed: str) -> list[Sample]:
    """Lines "1410, 698.52"; a line that was cut short, or has no number ("[N/A]"), is left out."""
    samples: list[Sample] = []
    for line in printed.splitlines(keepends=True):
        clock, _, watts = line.partition(",")
        if not line.endswith("\n"):
            continue
        try:
            samples.append((float(clock), float(watts)))
        except ValueError:
            continue
    return samples
