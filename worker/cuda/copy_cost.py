"""Whether scattered pages are copied to a peer faster by a kernel or by the card's copy engines.

    kernel     one launch, some SMs, any number of runs at once
    engines    no SM; each run costs a launch of its own

The constants were measured on H200s over NVLink; `python -m benchmarks.transfer.gpu
--copy-cost` measures them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCost:
    """Copy engines are used unless they are slower by more than `patience`: they leave the SMs to
    prefill and decode. Beside matrix products the kernel has half its speed or less (178 GB/s,
    where the copy engines keep 373)."""

    kernel_start_s: float = 20e-6  # upload of the page numbers, and the launch
    kernel_bytes_per_s: float = 340e9
    engines_start_s: float = 30e-6  # whatever the number of runs
    run_start_s: float = 1e-6  # CPU time to submit one run
    run_gap_s: float = 0.25e-6  # between two copies on the card
    run_bytes_per_s: float = 390e9
    patience: float = 2.0

    def kernel_s(self, n_bytes: int) -> float:
        return self.kernel_start_s + n_bytes / self.kernel_bytes_per_s

    def engines_s(self, n_bytes: int, n_runs: int) -> float:
        """Runs are submitted while earlier ones copy: the slower of the two counts."""
        moving_s = n_bytes / self.run_bytes_per_s + n_runs * self.run_gap_s
        return max(n_runs * self.run_start_s, moving_s) + self.engines_start_s

    def takes_kernel(self, n_bytes: int, n_runs: int) -> bool:
        return self.engines_s(n_bytes, n_runs) > self.patience * self.kernel_s(n_bytes)
