"""One simulated worker: a queue of prompts that it computes in turn, and a batch of rows.

    prefill side   busy until `free_s` with a step of prompts
    decode side    all rows write one token a step: `position` is how many steps there were, so a
                   row that joins at 100 and writes 40 tokens ends at 140

While both sides have work at once, as after a flip, they share each step: prompts have what the
rows leave of it, and rows write one token in as long as the prompts take.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from twolane.deploy.controller.observation import Role, State, Worker
from twolane.deploy.controller.priors import Hardware

_P99 = 2.326  # standard deviations


def late_share(step_s: float, gap_s: float, hardware: Hardware) -> float:
    """The share of tokens of such steps that reach the client later than `gap_s` after the one
    before: steps vary on their way there, by a normal law whose 99th percentile is measured."""
    deviations = (step_s - gap_s) / hardware.gap_jitter_s * _P99
    return 0.5 * (1 + math.erf(deviations / math.sqrt(2)))


@dataclass(slots=True, eq=False)
class SimWorker:
    """Times are seconds of the simulation. `ready_s`: when it becomes ready, or serves its new
    role; infinite for a start that never will."""

    worker_id: str
    roles: frozenset[Role]
    state: State
    since_s: float
    ready_s: float
    gpus: int = 1
    free_s: float = 0.0
    queue: deque[int] = field(default_factory=deque)  # prompts
    queued_tokens: int = 0  # of those, and of what is left of the one that has begun
    placed_tokens: int = 0  # of those, and of the whole one that has begun
    begun: tuple[int, int] | None = None  # a prompt of which so many tokens are computed
    step_s: float = 0.0  # of the latest step of prompts, which ends at `free_s`
    step_prompts: int = 0  # whose last tokens that step computes
    step_tokens: int = 0  # of those prompts
    placed_s: float = 0.0  # when the queue began
    last_given: int = 0  # the number of the latest prompt placed here
    expected: int = 0  # rows whose prompts are not computed
    position: float = 0.0
    late: float = 0.0  # tokens written so far whose gaps were too long
    context: float = 0.0
    started_s: float = 0.0
    ends: list[tuple[float, int, float, int]] = field(default_factory=list)  # heap of rows

    @property
    def rows(self) -> int:
        return len(self.ends)

    def backlog(self, now: float) -> int:
        """Tokens of the prompts that are not computed. As at the router, all of a prompt's count
        until its last one is."""
        return self.placed_tokens + (self.step_tokens if self.free_s > now else 0)

    def prompts(self, now: float) -> int:
        """How many prompts are to be computed, or are being computed."""
        in_step = self.step_prompts if self.free_s > now else 0
        return len(self.queue) + (self.begun is not None) + in_step

    def takes(self, role: Role) -> bool:
        """Whether it takes new work of that role."""
        return self.state is State.READY and role in self.roles

    def join(self, index: int, prompt: int, output: int, late: int) -> None:
        """A row joins the batch; `late`: gaps of it that were too long already."""
        heappush(self.ends, (self.position + output, index, self.late - late, prompt + output))
        self.context += prompt

    def advance(
        self, now: float, dt: float, hardware: Hardware, gap_s: float
    ) -> list[tuple[int, float]]:
        """Decode for `dt` up to `now`. Returns the rows that ended: index, and how many of their
        tokens came late."""
        rows = len(self.ends)
        if not rows:
            return []
        beside_s = 0.0  # of this time, beside prompts
        if self.step_s:
            beside_s = min(dt, max(0.0, self.free_s - (now - dt)))
        for for_s, step_s in (
            (beside_s, self.step_s),
            (dt - beside_s, hardware.decode.step_s(rows, self.context)),
        ):
            if for_s > 0:
                moved = for_s / step_s
                self.position += moved
                self.context += rows * moved
                self.late += moved * late_share(step_s, gap_s, hardware)
        ended = []
        ends = self.ends
        while ends and ends[0][0] <= self.position:
            end, index, late_before, context = heappop(ends)
            self.context -= context + (self.position - end)
            ended.append((index, self.late - late_before))
        if not ends:
            self.context = 0.0
        return ended

    def is_empty(self, now: float) -> bool:
        has_prompts = self.queue or self.begun is not None or self.free_s > now
        return not (self.ends or self.expected or has_prompts)

    def view(self, now: float) -> Worker:
        """The worker as an input of the law."""
        return Worker(
            worker_id=self.worker_id,
            roles=self.roles,
            state=self.state,
            since_s=self.since_s,
            gpus=self.gpus,
            rows=self.rows + self.expected + len(self.queue) + (self.free_s > now),
            started_s=self.started_s,
            has_ticket=self.state is State.DRAINING and self.is_empty(now),
        )
