"""Counts what steps have computed, and how long they took: from it capacities are learnt.

A step with prompts and rows tells about neither: it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from twolane.engine.step import RowResult, RowWork
from twolane.v1 import worker_pb2


class StepTotals:
    """`done` has the sums since the worker began. The caller must not change it."""

    def __init__(self) -> None:
        self.done = worker_pb2.WorkDone()

    def note(
        self, work: Sequence[RowWork], results: Sequence[RowResult], n_decode: int, took_s: float
    ) -> None:
        """A step of this work, of which the first `n_decode` shares are decode rows, has ended."""
        done = self.done
        if n_decode == len(work):
            done.decode_steps += 1
            done.decode_rows += n_decode
            done.decode_tokens += sum(len(result.tokens) for result in results)
            done.decode_context += sum(share.start + 1 for share in work)
            done.decode_s += took_s
        elif not n_decode:
            done.prefill_steps += 1
            done.prefill_tokens += sum(share.n_new for share in work)
            done.prefill_squares += sum(share.n_new * share.n_new for share in work)
            done.prefill_s += took_s
