"""The capacity of one worker of a pool, estimated from its steps.

    prefill   step_s = a + b * tokens + c * sum of (tokens of a prompt)^2
    decode    step_s = a + b * rows   + c * context tokens

The three costs are fitted by recursive least squares. They begin with figures that were measured on
that kind of GPU (`priors`), which count as much as 200 steps do and are forgotten at the pace of a
window of 500 steps. What follows from them may change by 30 % a minute, so one odd step cannot
halve the fleet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PRIOR_STEPS = 200
WINDOW_STEPS = 500
MOST_CHANGE_PER_MIN = 0.3


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: `fixed_s` + `each_s` * n + `more_s` * x; see the module for n and x."""

    fixed_s: float
    each_s: float
    more_s: float

    def __post_init__(self) -> None:
        assert min(self.fixed_s, self.each_s, self.more_s) >= 0
        assert self.fixed_s + self.each_s > 0

    def step_s(self, n: float, x: float) -> float:
        return self.fixed_s + self.each_s * n + self.more_s * x


class LearntCost:
    """Estimates the cost of a step from a prior and from measured steps.

    `typical`: n and x of an ordinary step. They set the scale on which the prior is trusted, and
    each step counts by its relative error, so short steps are fitted as well as long ones.
    """

    def __init__(self, prior: StepCost, typical: tuple[float, float]) -> None:
        assert min(typical) > 0
        self._scale = (1.0, *typical)
        self._theta = [
            cost * scale
            for cost, scale in zip(
                (prior.fixed_s, prior.each_s, prior.more_s), self._scale, strict=True
            )
        ]
        usual_s = prior.step_s(*typical)
        spread = usual_s * usual_s / PRIOR_STEPS
        self._p = [[spread if i == j else 0.0 for j in range(3)] for i in range(3)]
        self._keep = 1 - 1 / WINDOW_STEPS

    def add(self, n: float, x: float, step_s: float) -> None:
        """Update the fit with one measured step; `n` and `step_s` must be above 0."""
        assert n > 0
        assert step_s > 0
        features = [1 / step_s, n / self._scale[1] / step_s, x / self._scale[2] / step_s]
        px = [sum(self._p[i][j] * features[j] for j in range(3)) for i in range(3)]
        total = self._keep + sum(features[i] * px[i] for i in range(3))
        gain = [value / total for value in px]
        error = 1.0 - sum(self._theta[i] * features[i] for i in range(3))
        self._theta = [self._theta[i] + gain[i] * error for i in range(3)]
        for i in range(3):
            for j in range(3):
                self._p[i][j] = (self._p[i][j] - gain[i] * px[j]) / self._keep
        self._bound_p()

    def _bound_p(self) -> None:
        """Equal steps tell nothing about the other directions, whose doubt must not grow without
        end."""
        most = max(self._p[i][i] for i in range(3))
        bound = self._theta_size() ** 2
        if most > bound > 0:
            shrink = bound / most
            self._p = [[value * shrink for value in row] for row in self._p]

    def _theta_size(self) -> float:
        return max(abs(value) for value in self._theta)

    @property
    def cost(self) -> StepCost:
        """The current estimate. A negative cost is noise and counts as zero."""
        fixed, each, more = (
            max(0.0, value / scale) for value, scale in zip(self._theta, self._scale, strict=True)
        )
        return StepCost(fixed, max(each, 1e-12), more)


class Clamped:
    """A rate that follows another one, changing by at most 30 % a minute."""

    def __init__(self, first: float) -> None:
        assert first > 0
        self._value = first
        self._at_s: float | None = None

    @property
    def value(self) -> float:
        return self._value

    def follow(self, at_s: float, rate: float, *, is_free: bool = False) -> float:
        """The new value. `at_s` may not fall. `is_free`: it was a guess, and may change at once."""
        minutes = 0.0 if self._at_s is None else (at_s - self._at_s) / 60
        assert minutes >= 0
        self._at_s = at_s
        factor = (1 + MOST_CHANGE_PER_MIN) ** minutes
        bounded = min(max(rate, self._value / factor), self._value * factor)
        self._value = rate if is_free else bounded
        return self._value


def prefill_tokens_per_s(cost: StepCost, prompts: Sequence[int]) -> float:
    """Prompt tokens per second of a worker that computes prompts of this length one by one."""
    assert prompts
    time_s = sum(cost.step_s(n, n * n) for n in prompts)
    return sum(prompts) / time_s


def rows_within(cost: StepCost, step_s: float, context_tokens: float, most: int) -> int:
    """Rows of that mean context that one step of `step_s` has time for: 1 to `most`."""
    each_s = cost.each_s + cost.more_s * context_tokens
    return max(1, min(most, int((step_s - cost.fixed_s) / each_s)))


def decode_tokens_per_s(cost: StepCost, rows: int, context_tokens: float) -> float:
    return rows / cost.step_s(rows, rows * context_tokens)
