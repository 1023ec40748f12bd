"""One router's stream, as the rest of a worker sees it."""

from __future__ import annotations

from twolane.rpc.columns import ColumnWriter
from twolane.rpc.link import Link, LinkBrokenError
from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_log import ROLES
from twolane.worker.attempts.owner import Owner

SessionLink = Link[worker_pb2.SessionResponse, worker_pb2.SessionRequest]


class Session:
    """Compared by identity: a router that reconnects gets a new one. Logs of its rows append to
    `tokens`, which are sent with the next message."""

    def __init__(
        self, owner: Owner, link: SessionLink, now: float, router: worker_pb2.RouterAddress
    ) -> None:
        self.owner = owner
        self.router = router  # where it is reached
        self.heard_s = now  # when the latest message arrived
        self.tokens = {role: ColumnWriter(role) for role in ROLES}
        self._link = link
        self.next_number = 1  # of the next message with tokens or rows
        self.confirmed = 0  # the number of the last one that its router has processed
        self._drain = 0  # the number of the latest drain that it was told of
        self._drain_told_at = 0  # in the message of this number
        self._load_sent_s: float | None = None
        self._load_sent: worker_pb2.LoadReport | None = None
        self._owes_load = False  # the last report is about to be out of date

    @property
    def n_tokens(self) -> int:
        """How many tokens wait to be sent."""
        return sum(map(len, self.tokens.values()))

    def take_tokens(self) -> list[worker_pb2.TokenColumns]:
        return [writer.take() for writer in self.tokens.values() if writer.rows]

    def needs_load(self, now: float, every_s: float) -> bool:
        """Whether no load report was sent for every_s, or the last one is out of date."""
        if self._load_sent_s is None or self._owes_load:
            return True
        return now >= self._load_sent_s + every_s

    def has_sent(self, load: worker_pb2.LoadReport) -> bool:
        """Whether the last report was identical."""
        return load == self._load_sent

    def send(
        self, response: worker_pb2.SessionResponse, now: float, *, owes_load: bool = False
    ) -> None:
        """Never blocks. A broken link is detected by the receiving side; the logs keep what is
        lost."""
        if response.HasField("load"):
            self._load_sent_s, self._load_sent = now, response.load
            self._owes_load = owes_load
        drain = response.load.drain.number
        if response.tokens or response.rows or drain:
            if drain and drain != self._drain:
                self._drain, self._drain_told_at = drain, self.next_number
            response.number = self.next_number
            self.next_number += 1
        try:
            self._link.send(response)
        except LinkBrokenError:
            return

    def knows(self, drain: int) -> bool:
        """Whether the router has confirmed that it was told of the drain of that number: what it
        assigned before has arrived."""
        return drain == self._drain and self.confirmed >= self._drain_told_at

    def close(self) -> None:
        self._link.close()
