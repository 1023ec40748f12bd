"""Adds up what routers and workers report, into the signals that pools are sized by.

Their counters begin at zero with each process, and go on while a controller is away: what counts is
by how much each has grown since it was seen last. The first report of a router counts as nothing,
and so does that of a worker which has worked for longer than this controller looks: they have run
before it heard them. Other workers are new, and count from zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from twolane.deploy.controller.observer import Signals
from twolane.v1 import cluster_pb2, worker_pb2

_COUNTED = ("requests", "prompt_tokens", "cached_tokens", "answers", "answer_tokens", "held")
_DONE = (
    "prefill_steps", "prefill_tokens", "prefill_squares", "prefill_s",
    "decode_steps", "decode_rows", "decode_context", "decode_s", "decode_tokens",
)  # fmt: skip
_ATTAINMENT_S = 300.0
_MOST_REPEATS = 8  # of one report's mean step, however many steps it stands for
_SERVES = ("alive", "draining", "suspect")  # words of WorkerStatus.state

Step = Callable[[int, int, float], None]
DecodeStep = Callable[[int, int, float, float], None]


class Reports:
    """Call `note` at rising times with all that is known. `kv_tokens`: of one decode worker."""

    def __init__(self, kv_tokens: int) -> None:
        self._kv_tokens = kv_tokens
        self._last: dict[str, dict[str, float]] = {}
        self._totals: dict[str, float] = dict.fromkeys((*_COUNTED, "written"), 0.0)
        self._to_compute = 0.0  # prompt tokens that arrived and were not cached; never falls
        self._began_s: float | None = None  # when a router or a worker was first seen
        self._recent: deque[tuple[float, float, float]] = deque()  # (time, answers, held)
        self.signals = Signals()
        self.waiting = 0  # requests that no worker has yet

    def note(
        self,
        now: float,
        workers: Iterable[cluster_pb2.WorkerStatus],
        traffic: Mapping[str, cluster_pb2.Traffic],
        on_prefill: Step,
        on_decode: DecodeStep,
    ) -> None:
        """`traffic` by router. A mean step of each worker since the last look is told to
        `on_prefill` (tokens, squares, seconds) and `on_decode` (rows, context tokens, seconds, and
        tokens that each row got)."""
        before = self._totals["answers"], self._totals["held"]
        for name, its in traffic.items():
            counts = {key: getattr(its, key) for key in _COUNTED}
            last = self._last.get(f"router {name}", counts)
            if any(counts[key] < last[key] for key in counts):  # a process that began anew
                last = dict.fromkeys(counts, 0.0)
            self._last[f"router {name}"] = counts
            for key in _COUNTED:
                self._totals[key] += counts[key] - last[key]
        # What is cached is known when a prompt gets a worker, maybe long after it arrived. It is
        # taken off the prompts that come afterwards: a rate of arrivals is never negative.
        arrived = self._totals["prompt_tokens"] - self._totals["cached_tokens"]
        self._to_compute = max(self._to_compute, arrived)
        alive = [its for its in workers if its.state in _SERVES]
        for worker in alive:
            self._learn(now, worker, on_prefill, on_decode)
        if self._began_s is None and (alive or traffic):
            self._began_s = now
        answers, held = self._totals["answers"] - before[0], self._totals["held"] - before[1]
        if answers:
            self._recent.append((now, answers, held))
        while self._recent and self._recent[0][0] < now - _ATTAINMENT_S:
            self._recent.popleft()
        self.waiting = sum(its.waiting for its in traffic.values())
        self.signals = self._sum(alive, traffic)

    @property
    def attainment(self) -> float | None:
        """Of the last five minutes' answers; None: there were none."""
        answers = sum(n for _, n, _ in self._recent)
        return sum(held for _, _, held in self._recent) / answers if answers else None

    def _learn(
        self,
        now: float,
        worker: cluster_pb2.WorkerStatus,
        on_prefill: Step,
        on_decode: DecodeStep,
    ) -> None:
        done, whose = worker.load.done, f"epoch {worker.worker.epoch}"
        counts: dict[str, float] = {key: getattr(done, key) for key in _DONE}
        looks_s = -1.0 if self._began_s is None else now - self._began_s
        is_new = done.prefill_s + done.decode_s <= looks_s
        last = self._last.get(whose, dict.fromkeys(counts, 0.0) if is_new else counts)
        if any(counts[key] < last[key] for key in counts):
            return  # told by a router that has heard less of it than the one before
        self._last[whose] = counts
        got = {key: counts[key] - last[key] for key in counts}
        written = got["decode_tokens"] or got["decode_rows"]
        self._totals["written"] += written
        if (steps := got["prefill_steps"]) and got["prefill_s"] > 0:
            mean = got["prefill_tokens"] / steps, got["prefill_squares"] / steps
            for _ in range(int(min(steps, _MOST_REPEATS))):
                on_prefill(max(1, round(mean[0])), round(mean[1]), got["prefill_s"] / steps)
        if (steps := got["decode_steps"]) and got["decode_s"] > 0:
            mean = got["decode_rows"] / steps, got["decode_context"] / steps
            took_s, each = got["decode_s"] / steps, written / max(1.0, got["decode_rows"])
            for _ in range(int(min(steps, _MOST_REPEATS))):
                on_decode(max(1, round(mean[0])), round(mean[1]), took_s, each)

    def _sum(
        self,
        workers: list[cluster_pb2.WorkerStatus],
        traffic: Mapping[str, cluster_pb2.Traffic],
    ) -> Signals:
        loads = [worker.load for worker in workers]
        takers = [w.load for w in workers if worker_pb2.ROLE_DECODE in w.roles]
        stuck = [its for its in traffic.values() if its.decode_is_full]
        free = [its for its in traffic.values() if not its.decode_is_full]
        totals = self._totals
        return Signals(
            prompt_tokens=int(self._to_compute),
            requests=int(totals["requests"]),
            output_tokens=int(totals["written"]),
            answers=int(totals["answers"]),
            answer_tokens=int(totals["answer_tokens"]),
            waiting_tokens=sum(its.waiting_tokens for its in free)
            + sum(load.prefill_queue_tokens for load in loads),
            waiting=sum(its.waiting for its in free) + sum(load.prefill_queue for load in loads),
            oldest_wait_s=max(
                [its.oldest_wait_s for its in free] + [load.oldest_wait_s for load in loads],
                default=0.0,
            ),
            unplaced=sum(its.waiting for its in stuck) + sum(load.unplaced for load in loads),
            rows=sum(load.rows + load.decode_queue for load in loads),
            page_tokens=int(self._kv_tokens * sum(map(_used_share, takers))),
        )


def _used_share(load: worker_pb2.LoadReport) -> float:
    pages = load.pages
    taken = pages.used + pages.pinned + pages.quarantined
    total = taken + pages.cached + pages.free
    return (taken + load.reserved_growth_pages) / total if total else 0.0
