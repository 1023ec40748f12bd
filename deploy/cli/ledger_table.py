"""A table that shows where each request spent its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from twolane.values import Ledger


@dataclass(frozen=True, slots=True)
class Measured:
    """One request: its ledger, and the times at which its tokens reached the client."""

    title: str
    ledger: Ledger
    arrivals_s: Sequence[float]

    @property
    def gaps_s(self) -> list[float]:
        """The times between consecutive tokens at the client."""
        return [b - a for a, b in zip(self.arrivals_s, self.arrivals_s[1:], strict=False)]


def ledger_table(requests: Sequence[Measured]) -> Table:
    """The table, with one column for each request."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column()
    for request in requests:
        table.add_column(request.title, justify="right", no_wrap=True)
    for name, cell in _LINES:
        table.add_row(name, *(cell(request) for request in requests))
    return table


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _gaps(request: Measured) -> str:
    gaps_s = request.gaps_s or [0.0]
    return f"{1000 * sum(gaps_s) / len(gaps_s):.1f} / {1000 * max(gaps_s):.1f} ms"


_LINES: list[tuple[str, Callable[[Measured], str]]] = [
    ("queued at the router", lambda r: _ms(r.ledger.queued_s)),
    ("queued at the prefill worker", lambda r: _ms(r.ledger.prefill_wait_s)),
    ("prefill", lambda r: _ms(r.ledger.prefill_s)),
    ("transfer, after first token", lambda r: _ms(r.ledger.transfer_s)),
    ("decode", lambda r: _ms(r.ledger.decode_wait_s + r.ledger.decode_s)),
    ("[bold]time to first token[/]", lambda r: _ms(r.ledger.ttft_s)),
    ("[bold]gap between tokens, mean/max[/]", _gaps),
    ("tokens in / out", lambda r: f"{r.ledger.prompt_tokens} / {r.ledger.output_tokens}"),
    ("pages moved", lambda r: str(r.ledger.transfer_pages)),
    ("bytes moved", lambda r: f"{r.ledger.transfer_bytes / 1024:.0f} KiB"),
]
