"""The clock and the power of this GPU while something runs on it."""

from __future__ import annotations

import subprocess
from statistics import median
from types import TracebackType

import torch

PERIOD_MS = 100
_STOP_S = 10.0


class CardMeter:
    """Asks nvidia-smi ten times a second, while it is entered, for the clock of the SMs of the
    current CUDA device and what it draws. `samples` afterwards: (MHz, watts) in order of time; none
    where the card tells neither. FileNotFoundError without nvidia-smi."""

    samples: list[tuple[float, float]]

    def __enter__(self) -> CardMeter:
        uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
        query = ("--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits")
        self._process = subprocess.Popen(
            ["nvidia-smi", f"--id=GPU-{uuid}", *query, f"--loop-ms={PERIOD_MS}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        printed, _ = self._process.communicate(timeout=_STOP_S)
        self.samples = parse(printed)

    def late_half(self) -> tuple[float | None, float | None]:
        """The medians (MHz, watts) of the second half of the samples, None without any."""
        late = self.samples[len(self.samples) // 2 :]
        if not late:
            return None, None
        return median(clock for clock, _ in late), median(watts for _, watts in late)


def parse(printed: str) -> list[tuple[float, float]]:
    """Lines "1410, 698.52"; a line that was cut short, or has no number ("[N/A]"), is left out."""
    samples: list[tuple[float, float]] = []
    for line in printed.splitlines(keepends=True):
        clock, _, watts = line.partition(",")
        if not line.endswith("\n"):
            continue
        try:
            samples.append((float(clock), float(watts)))
        except ValueError:
            continue
    return samples
