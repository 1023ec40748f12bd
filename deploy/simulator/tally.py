"""What a simulation counts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """The outcome of a run: requests, misses and GPU time."""

    requests: int = 0
    late_first: int = 0
    late_gaps: int = 0
    refused: int = 0  # by a full queue, or after they had waited for too long
    missed: int = 0  # with those
    lost: int = 0  # rows of workers that were deleted too early: a fault of the controller
    gpu_s: float = 0.0
    most_gpus: int = 0
    actions: dict[str, int] = field(default_factory=dict)
    hours: dict[int, int] = field(default_factory=dict)  # actions by hour
    sizes: list[tuple[float, int, int, int, float]] = field(default_factory=list)

    @property
    def missed_share(self) -> float:
        return self.missed / self.requests if self.requests else 0.0
