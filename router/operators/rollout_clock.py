"""How long the latest rollout has made no step."""

from __future__ import annotations

from twolane.v1 import cluster_pb2


class RolloutClock:
    """Of one router, from what a controller tells it. Reads no clock: `now` is in seconds."""

    def __init__(self) -> None:
        self._told: cluster_pb2.RolloutStatus | None = None
        self._step: object = None
        self._since = 0.0

    def note(self, told: cluster_pb2.RolloutStatus | None, now: float) -> None:
        """None: there was no rollout."""
        step = None if told is None else _step(told)
        if step != self._step:
            self._step, self._since = step, now
        self._told = told

    def status(self, now: float) -> cluster_pb2.RolloutStatus | None:
        """As it was told last, with `waits_s`."""
        if self._told is None:
            return None
        its = cluster_pb2.RolloutStatus()
        its.CopyFrom(self._told)
        if its.waits_for:
            its.waits_s = now - self._since
        return its


def _step(its: cluster_pb2.RolloutStatus) -> object:
    """Another one after each step: a worker that begins to drain, or has another revision. One that
    dies again and again at its start makes none."""
    workers = [(each.name, each.is_new, each.now == "drains") for each in its.workers]
    return its.state, its.to_dir, workers
