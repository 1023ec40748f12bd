"""An operator's command to drain a worker or to undo that, until the worker has carried it out.

Whether a worker drains is the worker's own state, which its load report shows to every router. A
router sends its command again when a session opens, and forgets it once a report shows that it was
carried out, or that a newer drain has begun. So a router that comes back does not repeat a command
that another router has changed meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from twolane.v1 import drain_pb2, worker_pb2


@dataclass(frozen=True, slots=True)
class DrainWish:
    """`begun` is the number of the worker's drains that had begun when the command was given."""

    enabled: bool
    hand_over: bool = False
    begun: int = 0

    @classmethod
    def make(
        cls, former: DrainWish | None, load: worker_pb2.LoadReport, *, undo: bool, hand_over: bool
    ) -> DrainWish:
        """The wish for a new command; `former` may not have reached the worker yet."""
        begun = begun_in(load)
        if former is not None:
            is_next = former.enabled and undo  # the former one counts as a drain if it arrives
            begun = max(begun, former.begun + is_next)
        return cls(not undo, hand_over and not undo, begun)

    def first(self) -> drain_pb2.Drain:
        """The command as sent first: the worker carries it out in any case."""
        return drain_pb2.Drain(enabled=self.enabled, hand_over=self.hand_over)

    def again(self) -> drain_pb2.Drain:
        """The command as repeated: the worker carries it out unless it is outdated."""
        drain = self.first()
        drain.begun = self.begun
        return drain

    def is_settled(self, load: worker_pb2.LoadReport) -> bool:
        """Whether the worker has carried out this command, or a newer one."""
        begun, drains = begun_in(load), load.HasField("drain")
        if begun > self.begun:
            return True
        if self.enabled:
            return drains and (load.drain.hands_over or not self.hand_over)
        # A report of fewer drains was made before the drain to undo had arrived. Workers of older
        # versions count none.
        return not drains and begun in (self.begun, 0)


def begun_in(load: worker_pb2.LoadReport) -> int:
    return int(max(load.drains, load.drain.number))
