"""How long answers take, as measured lately: what hopeless deadlines are told by.

    dispatched ── prefill, transfer ──> first token ── a token each step ──> last token
               first_s, by the prompt               gap_s x tokens that are likely to come

Means that forget, of the last few dozen answers, and how far they were off, which is the margin.
"""

from __future__ import annotations

from dataclasses import dataclass

ENOUGH = 8  # fewer say nothing
MAX_AGE_S = 30.0
_WEIGHT = 1 / 16  # of the latest


@dataclass(slots=True)
class Mean:
    """Exponentially weighted; the first value counts whole."""

    value: float = 0.0
    n: int = 0

    def note(self, value: float) -> None:
        self.n += 1
        self.value += (value - self.value) * max(_WEIGHT, 1 / self.n)


class ServiceTime:
    """Of one model."""

    def __init__(self) -> None:
        self._first_s = Mean()
        self._first_tokens = Mean()
        self._gap_s = Mean()
        self._share = Mean()  # of max_tokens, that answers have when they finish
        self._error = Mean()  # relative to what was predicted: at most 1 if it was too long
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
        """An answer is over, whole or cut short: from dispatch to the first token, and from there
        to the last."""
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
        """Tokens of an answer that may have so many."""
        if self._share.n < ENOUGH:
            return max_tokens
        return max(1.0, self._share.value * max_tokens)

    def service_s(self, prompt_tokens: int, max_tokens: int, now: float) -> float | None:
        """From dispatch to the likely end, with the margin; None: unknown."""
        if self._first_s.n < ENOUGH or not self._share.n or now - self._latest > MAX_AGE_S:
            return None
        likely_s = self._predicted(prompt_tokens, self._share.value * max_tokens)
        return likely_s * (1 + self._error.value)

    def _predicted(self, prompt_tokens: int, n_tokens: float) -> float:
        longer = max(1.0, prompt_tokens / max(self._first_tokens.value, 1.0))
        return self._first_s.value * longer + self._gap_s.value * max(0.0, n_tokens - 1)
