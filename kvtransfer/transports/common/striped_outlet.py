"""Several outlets to one receiver, used as one: they take posts in turn."""

from __future__ import annotations

from collections.abc import Sequence

from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.transport import Outlet, Posted, Wake


class Bundle:
    """See `Outlet`. Owns its outlets."""

    def __init__(self, outlets: Sequence[Outlet]) -> None:
        assert outlets
        self._outlets = outlets
        self._turn = 0

    def post(self, post: int, generation: int, plan: CopyPlan) -> None:
        self._turn = (self._turn + 1) % len(self._outlets)
        self._outlets[self._turn].post(post, generation, plan)

    def cancel(self, generation: int) -> None:
        for outlet in self._outlets:
            outlet.cancel(generation)

    def poll(self) -> list[Posted]:
        return [posted for outlet in self._outlets for posted in outlet.poll()]

    @property
    def n_moved(self) -> int:
        return sum(outlet.n_moved for outlet in self._outlets)

    def set_wake(self, wake: Wake) -> None:
        for outlet in self._outlets:
            outlet.set_wake(wake)

    def close(self) -> None:
        for outlet in self._outlets:
            outlet.close()

    def close_soon(self) -> bool:
        left = [outlet for outlet in self._outlets if not outlet.close_soon()]  # each is asked
        return not left
