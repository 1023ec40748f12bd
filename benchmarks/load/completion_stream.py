"""How many tokens each event of a streamed completion carries.

The protocol does not define it, so there are three sources, the best first:

    usage in every event        `continuous_usage_stats`: exact, at the time of the event
    usage in the last event     the total; what exceeds one per event came at an unknown time
    neither                     one token per event

Under the second, tokens of unknown time are booked at the last event that carried any. Whether a
request holds its SLO does not depend on that choice: its first token stays, and tokens that share a
message have gaps of zero wherever they are booked.
"""

from __future__ import annotations

import json

from benchmarks.load.caller import Answer

DONE = b"[DONE]"


class CompletionStream:
    """Feeds one `Answer` from the events of one completion of `n_output` tokens."""

    __slots__ = ("_answer", "_is_told", "_last_s", "_n_noted", "_n_output", "is_done")

    def __init__(self, answer: Answer, n_output: int) -> None:
        self._answer = answer
        self._n_output = n_output
        self._n_noted = 0
        self._last_s = 0.0
        self._is_told = False  # usage was sent: events without it carry no token
        self.is_done = False

    def take(self, data: bytes, at_s: float) -> None:
        """One event's data. An error or malformed data in it becomes the answer's failure."""
        if data == DONE:
            self.is_done = True
            return
        try:
            event = json.loads(data)
            if "error" in event:
                self._answer.failure = "ERROR_IN_STREAM"
                return
            choices, usage = event.get("choices"), event.get("usage")
            n_told = None if usage is None else int(usage["completion_tokens"])
        except (ValueError, TypeError, KeyError, AttributeError):
            self._answer.failure = "NOT_A_COMPLETION"
            return
        self._is_told |= n_told is not None
        if n_told is None and choices and not self._is_told:
            # No token beyond those requested: a last event may have only a finish reason.
            n_told = min(self._n_noted + 1, self._n_output)
        if choices:
            self._last_s = at_s
        if n_told is not None:
            self._note(n_told - self._n_noted, self._last_s)

    def _note(self, n_tokens: int, at_s: float) -> None:
        if n_tokens > 0:
            self._answer.note(n_tokens, at_s)
            self._n_noted += n_tokens
        elif n_tokens < 0:  # events without a token were taken for tokens
            del self._answer.times_s[n_tokens:]
            self._n_noted += n_tokens
