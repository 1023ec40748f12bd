"""A worker with both roles, step by step: prompts and rows share each step.

    step    rows, one token each  |  prompt chunks, up to `step_tokens` in all
    time    as long as the prompts take, and what attention over the rows' context adds

A row's gap is the whole step, so a prompt beside decode rows is a long gap for each of them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from twolane.deploy.controller.priors import Hardware
from twolane.deploy.simulator.workers import late_share


@dataclass(slots=True, eq=False)
class Colocated:
    """One worker. `first_s` gets the time of each request's first token, `late` its late gaps."""

    hardware: Hardware
    gap_s: float
    now: float = 0.0
    backlog: int = 0
    _queue: deque[tuple[float, int, int, int]] = field(default_factory=deque)
    _chunk: int = 0  # of the first prompt that waits: computed already
    _ends: list[tuple[int, int, float, int]] = field(default_factory=list)
    _steps: int = 0
    _late: float = 0.0
    _context: int = 0

    @property
    def load(self) -> int:
        """The number of requests on this worker."""
        return len(self._queue) + len(self._ends)

    def add(self, at_s: float, index: int, prompt: int, output: int) -> None:
        self._queue.append((at_s, index, prompt, output))
        self.backlog += prompt

    def run_until(
        self, end_s: float, first_s: list[float], late: list[float], done_s: list[float]
    ) -> None:
        """Make steps until `end_s`, or until there is nothing to do before it."""
        hardware = self.hardware
        while self.now < end_s:
            rows = len(self._ends)
            if not rows and not self._queue:
                self.now = end_s
                return
            room = hardware.step_tokens - rows
            tokens = squares = 0
            joining: list[tuple[int, int, int]] = []
            while self._queue and room > 0 and rows + len(joining) < hardware.rows:
                at_s, index, prompt, output = self._queue[0]
                if at_s > self.now:
                    break
                if self._context + prompt + output > hardware.kv_tokens:
                    break
                before = self._chunk
                part = min(room, prompt - before)
                tokens += part
                squares += (before + part) ** 2 - before * before
                room -= part
                if before + part < prompt:
                    self._chunk = before + part
                    break
                self._chunk = 0
                self._queue.popleft()
                joining.append((index, prompt, output))
            if not tokens and not rows:
                self.now = min(end_s, max(self.now, self._queue[0][0]))
                if self._queue[0][0] <= self.now:
                    raise AssertionError("a request that fits into no worker")
                continue
            step_s = hardware.step_s(tokens, squares, rows, self._context)
            self.now += step_s
            self._steps += 1
            self._context += rows
            self._late += late_share(step_s, self.gap_s, hardware)
            while self._ends and self._ends[0][0] <= self._steps:
                _, index, late_before, context = heappop(self._ends)
                self._context -= context
                late[index] = self._late - late_before
                done_s[index] = self.now
            for index, prompt, output in joining:
                self.backlog -= prompt
                first_s[index] = self.now
                # the first token comes with the prompt's step, the others one a step
                heappush(
                    self._ends, (self._steps + output - 1, index, self._late, prompt + output - 1)
                )
                self._context += prompt
