"""The result of one request, as its client saw it.

    arrival_s         + late_s                + token_times_s[0]   [1]      [2]
    |---------------->|---------------------->|------------------->|------->|
    planned           sent                    first token          gap      gap

Token times count from the planned arrival, so that a client that falls behind cannot make the
server look fast. Tokens of one message share one time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Record:
    """`failure` is empty when the whole answer came; else the stable reason of the error.

    `ledger` holds the figures of the final message, by field name; empty if none came.
    """

    index: int
    arrival_s: float
    late_s: float
    prompt_tokens: int
    output_tokens: int
    token_times_s: tuple[float, ...]
    failure: str = ""
    ledger: Mapping[str, float] = field(default_factory=dict)

    def answered(
        self,
        token_times_s: Sequence[float],
        failure: str,
        ledger: Mapping[str, float],
        *,
        late_s: float,
    ) -> Record:
        """This request with its answer."""
        return replace(
            self,
            token_times_s=tuple(token_times_s),
            failure=failure,
            ledger=ledger,
            late_s=late_s,
        )

    @property
    def is_complete(self) -> bool:
        return not self.failure and len(self.token_times_s) == self.output_tokens

    @property
    def ttft_s(self) -> float | None:
        """Planned arrival to first token; None if none came."""
        return self.token_times_s[0] if self.token_times_s else None

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None below two tokens."""
        times = self.token_times_s
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    @property
    def end_s(self) -> float:
        """Arrival of the last token (of the request if there is none), since the start of the
        run."""
        return self.arrival_s + (self.token_times_s[-1] if self.token_times_s else self.late_s)

    @cached_property
    def gaps_s(self) -> npt.NDArray[np.float64]:
        """Times between neighbouring tokens, one fewer than tokens."""
        return np.diff(np.array(self.token_times_s, np.float64))

    @property
    def gap_p99_s(self) -> float:
        """99th percentile of its own gaps, interpolated linearly; 0 where there are none."""
        return float(np.percentile(self.gaps_s, 99)) if len(self.gaps_s) else 0.0

    def to_json(self) -> dict[str, Any]:
        """Times in whole microseconds, as gaps: short, and exact enough."""
        record = asdict(self)
        steps = np.diff(np.array(self.token_times_s, np.float64), prepend=0.0)
        record["token_times_s"] = np.rint(steps * 1e6).astype(int).tolist()
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Record:
        times = np.cumsum(np.array(record["token_times_s"], np.float64)) / 1e6
        return cls(**{**record, "token_times_s": tuple(times.tolist())})


@dataclass(frozen=True, slots=True)
class Slo:
    """The promise to a user: the first token within `ttft_s`, and the 99th percentile of the
    gaps of this one answer within `gap_s`."""

    ttft_s: float
    gap_s: float

    def __str__(self) -> str:
        return f"{self.ttft_s * 1e3:g} ms / {self.gap_s * 1e3:g} ms"

    def is_held(self, record: Record) -> bool:
        """Whether the SLO was met. A refused, failed or truncated request never meets it."""
        ttft_s = record.ttft_s
        if not record.is_complete or ttft_s is None:
            return False
        return ttft_s <= self.ttft_s and record.gap_p99_s <= self.gap_s
