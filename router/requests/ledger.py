"""Where a request's time went, measured by the router and the workers, each on its own clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from twolane.v1 import sampling_pb2, worker_pb2

_SUMMED = (
    "prefill_wait_s",
    "prefill_s",
    "transfer_s",
    "decode_wait_s",
    "decode_s",
    "transfer_pages",
    "transfer_bytes",
)


@dataclass(slots=True)
class Timeline:
    """The times of one request, in seconds of the router's clock, and workers' figures by (attempt,
    role)."""

    arrived: float
    dispatched: float | None = None  # the first time
    first_token: float | None = None
    last_token: float | None = None
    gap_s: float = 0.0  # between the last two tokens
    steps_from: float | None = None  # the token from which steps are counted
    n_steps: int = 0  # tokens since
    figures: dict[tuple[int, int], worker_pb2.RowFigures] = field(default_factory=dict)

    def note_token(self, now: float) -> float | None:
        """Record a token. Returns the gap to the previous one, None for the first."""
        before, self.last_token = self.last_token, now
        if self.first_token is None:
            self.first_token = now
        if before is None:
            return None
        self.gap_s = now - before
        if self.steps_from is None:
            self.steps_from, self.n_steps = now, 0
        else:
            self.n_steps += 1
        return self.gap_s

    def moved(self) -> None:
        """The last token is the first of an attempt: before the next one its pages travel."""
        self.steps_from = None

    @property
    def step_s(self) -> float:
        """How long a step of its decode worker takes: the mean gap of the present attempt, even if
        tokens came late and together. 0: not known."""
        if self.steps_from is None or self.last_token is None or not self.n_steps:
            return 0.0
        return (self.last_token - self.steps_from) / self.n_steps

    def note_figures(self, attempt: int, role: int, figures: worker_pb2.RowFigures) -> None:
        """Record a worker's figures for its role in an attempt; they replace its earlier ones."""
        self.figures[attempt, role] = figures


def make_ledger(
    timeline: Timeline,
    *,
    prompt_tokens: int,
    output_tokens: int,
    attempts: int,
    takeovers: int,
    prefill_worker: str,
    decode_worker: str,
) -> sampling_pb2.Ledger:
    """Make the ledger. Times and bytes are summed over all attempts, because all were spent.
    `cached_tokens` is from the last attempt that reported it."""
    ledger = sampling_pb2.Ledger(
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        attempts=attempts,
        takeovers=takeovers,
        prefill_worker=prefill_worker,
        decode_worker=decode_worker,
    )
    for _, figures in sorted(timeline.figures.items(), key=lambda entry: entry[0]):
        for name in _SUMMED:
            setattr(ledger, name, getattr(ledger, name) + getattr(figures, name))
        ledger.cached_tokens = figures.cached_tokens or ledger.cached_tokens
    if timeline.dispatched is not None:
        ledger.queued_s = timeline.dispatched - timeline.arrived
    if timeline.first_token is not None:
        ledger.ttft_s = timeline.first_token - timeline.arrived
    if timeline.last_token is not None:
        ledger.total_s = timeline.last_token - timeline.arrived
    return ledger
