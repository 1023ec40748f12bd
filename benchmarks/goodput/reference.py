"""Earlier measurements of other servers, for comparison in tables and plots. See references/."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.record import Slo

FOLDER = Path(__file__).parents[1] / "references"


class UnknownReferenceError(ValueError):
    """There is no such reference, or it is for another workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One server's curve. `held` and `served_per_s` by SLO, as TTFT/gap in milliseconds."""

    rates_per_s: Sequence[float]
    ttft_p50_ms: Sequence[float]
    ttft_p99_ms: Sequence[float]
    gap_p99_ms: Sequence[float]
    held: Mapping[str, Sequence[float]]
    served_per_s: Mapping[str, float]

    def held_at(self, rate_per_s: float, slo: Slo) -> float | None:
        """The share that met the SLO, if exactly this rate was measured."""
        shares = dict(zip(self.rates_per_s, self.held.get(key(slo), ()), strict=False))
        return shares.get(rate_per_s)


Reference = Mapping[str, Mode]


def key(slo: Slo) -> str:
    return f"{slo.ttft_s * 1e3:g}/{slo.gap_s * 1e3:g}"


def read_reference(name: str, workload: str) -> Reference:
    """NAME.toml of the folder. Raises `UnknownReferenceError` if it is for another workload."""
    try:
        table = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(sorted(path.stem for path in FOLDER.glob("*.toml")))
        raise UnknownReferenceError(f"no reference {name!r}; there are: {known}") from error
    if table["workload"] != workload:
        raise UnknownReferenceError(
            f"{name} was measured on {table['workload']!r}, not {workload!r}"
        )
    return {mode: Mode(**curve) for mode, curve in table["modes"].items()}
