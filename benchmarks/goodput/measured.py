"""One saved run: a contender at one rate, request by request.

A run counts for an SLO if the client was on time; a late client measures only itself. Saved runs
suffice to evaluate any other SLO later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.goodput.search import Tally
from benchmarks.load.compare import columns
from benchmarks.load.record import Record, Slo
from benchmarks.load.summary import describe

Figures = Mapping[str, float | None]
_COLUMNS = ("arrival_ms", "prompt_tokens", "output_tokens", "ttft_ms", "gap_p99_ms", "late_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Misses:
    """Why requests missed an SLO: `late` first token only, `halting` gaps only, or `both`."""

    failed: int = 0
    late: int = 0
    halting: int = 0
    both: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """`requests` are columns of equal length; `failures` are reasons by row. `halted`: why the run
    was aborted, or empty."""

    contender: str
    round: int
    rate_per_s: float
    seed: int
    halted: str
    figures: Figures
    requests: Mapping[str, Sequence[Any]]
    failures: Mapping[str, str]

    @classmethod
    def of(
        cls,
        records: Sequence[Record],
        *,
        contender: str,
        round_: int,
        rate_per_s: float,
        seed: int,
        halted: str,
    ) -> Measured:
        return cls(
            contender=contender,
            round=round_,
            rate_per_s=rate_per_s,
            seed=seed,
            halted=halted,
            figures={name: _six_digits(value) for name, value in describe(records).items()},
            requests=columns([_row(record) for record in records]),
            failures={
                str(row): record.failure for row, record in enumerate(records) if record.failure
            },
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Measured:
        return cls(**saved)

    def __len__(self) -> int:
        return len(self.requests.get("ttft_ms", ()))

    def is_late(self, limit_s: float) -> bool:
        """Whether the client was late: then the run says nothing about the server."""
        late_ms = self.figures["client_late_p99_ms"]
        return late_ms is not None and late_ms > limit_s * 1e3

    def tally(self, slo: Slo) -> Tally:
        misses = self.misses(slo)
        n_missed = misses.failed + misses.late + misses.halting + misses.both
        return Tally(len(self) - n_missed, len(self), 1, bool(self.halted))

    def misses(self, slo: Slo) -> Misses:
        counts = {"failed": 0, "late": 0, "halting": 0, "both": 0}
        limits_ms = slo.ttft_s * 1e3, slo.gap_s * 1e3
        times = zip(
            self.requests.get("ttft_ms", ()), self.requests.get("gap_p99_ms", ()), strict=True
        )
        for row, (ttft_ms, gap_ms) in enumerate(times):
            if str(row) in self.failures:
                counts["failed"] += 1
            elif ttft_ms > limits_ms[0]:
                counts["both" if gap_ms > limits_ms[1] else "late"] += 1
            elif gap_ms > limits_ms[1]:
                counts["halting"] += 1
        return Misses(**counts)


def _row(record: Record) -> dict[str, object]:
    ttft_s = record.ttft_s
    values = (
        round(record.arrival_s * 1e3, 1),
        record.prompt_tokens,
        record.output_tokens,
        None if ttft_s is None else round(ttft_s * 1e3, 3),
        round(record.gap_p99_s * 1e3, 3),
        round(record.late_s * 1e3, 2),
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _six_digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
