"""The recent duration of answers, from which hopeless deadlines are recognised.

    dispatched ── prefill, transfer ──> first token ── a token each step ──> last token
               first_s, by the prompt               gap_s x expected tokens

These are exponentially weighted means over the last few dozen answers. Their mean error is the
margin.
"""

from __future__ import annotations

from dataclasses import dataclass

ENOUGH = 8  # with fewer there is no estimate
MAX_AGE_S = 30.0
_WEIGHT = 1 / 16  # of the latest value


@dataclass(slots=True)
class Mean:
    """An exponentially weighted mean, which begins as a plain mean."""

    value: float = 0.0
    n: int = 0

    def note(self, value: float) -> None:
        self.n += 1
        self.value += (value - self.value) * max(_WEIGHT, 1 / self.n)


class ServiceTime:
    """The service time of one model."""

    def __init__(self) -> None:
        self._first_s = Mean()
        self._first_tokens = Mean()
        self._gap_s = Mean()
        self._share = Mean()  # the part of max_tokens that finished answers have used
        self._error = Mean()  # relative to the prediction; at most 1 if that was too long
        self._latest = 0.0

    def note(
        self,
        *,
        prompt_tokens: int,
        first_s: float,
        n_tokens: int,
        tokens_s: float,
        max_tokens: int,
        is_whole: bool,
        now: float,
    ) -> None:
        """Record an answer, whole or cut short: `first_s` is from dispatch to the first token,
        `tokens_s` from there to the last."""
        predicted_s = self._predicted(prompt_tokens, n_tokens)
        took_s = first_s + tokens_s
        if self._first_s.n >= ENOUGH and predicted_s > 0:
            self._error.note(abs(took_s - predicted_s) / predicted_s)
        self._first_s.note(first_s)
        self._first_tokens.note(prompt_tokens)
        if n_tokens > 1:
            self._gap_s.note(tokens_s / (n_tokens - 1))
        if is_whole:
            self._share.note(n_tokens / max_tokens)
        self._latest = now

    def n_likely(self, max_tokens: int) -> float:
        """The expected tokens of an answer that may have `max_tokens`."""
        if self._share.n < ENOUGH:
            return max_tokens
        return max(1.0, self._share.value * max_tokens)

    def service_s(self, prompt_tokens: int, max_tokens: int, now: float) -> float | None:
        """The expected time from dispatch to the end, with the margin; None if unknown."""
        if self._first_s.n < ENOUGH or not self._share.n or now - self._latest > MAX_AGE_S:
            return None
        likely_s = self._predicted(prompt_tokens, self._share.value * max_tokens)
        return likely_s * (1 + self._error.value)

    def _predicted(self, prompt_tokens: int, n_tokens: float) -> float:
        longer = max(1.0, prompt_tokens / max(self._first_tokens.value, 1.0))
        return self._first_s.value * longer + self._gap_s.value * max(0.0, n_tokens - 1)
