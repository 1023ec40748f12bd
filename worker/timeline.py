"""When things happened to a row, on this worker's clock, and the durations that follow.

    arrived --- started --- first token --- committed      prefill role
                                  landed --- joined --- last token   decode role
      prefill_wait  prefill      transfer      decode_wait    decode

A moment that has not come is None; a duration without an end is 0. The first token of a landed row
was sampled by the other worker: its `decode` is 0 until a step here samples one.
"""

from __future__ import annotations

from dataclasses import dataclass

from twolane.v1 import worker_pb2


@dataclass(slots=True)
class Timeline:
    """Moments in seconds of the event loop's clock. Each role records its own."""

    arrived_s: float
    started_s: float | None = None
    first_token_s: float | None = None
    committed_s: float | None = None
    landed_s: float | None = None
    joined_s: float | None = None
    last_token_s: float | None = None

    def prefill_figures(self) -> worker_pb2.RowFigures:
        """The prefill role's durations. The role adds pages, bytes and cached tokens."""
        return worker_pb2.RowFigures(
            prefill_wait_s=_between(self.arrived_s, self.started_s),
            prefill_s=_between(self.started_s, self.first_token_s),
            transfer_s=_between(self.first_token_s, self.committed_s),
        )

    def decode_figures(self) -> worker_pb2.RowFigures:
        """The decode role's durations."""
        return worker_pb2.RowFigures(
            decode_wait_s=_between(self.landed_s, self.joined_s),
            decode_s=_between(self.joined_s, self.last_token_s),
        )


def _between(start_s: float | None, end_s: float | None) -> float:
    return 0.0 if start_s is None or end_s is None else max(0.0, end_s - start_s)
