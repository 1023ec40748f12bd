"""One stream from one router, as the rest of a worker sees it."""

from __future__ import annotations

from twolane.rpc.columns import ColumnWriter
from twolane.rpc.link import Link, LinkBrokenError
from twolane.v1 import worker_pb2
from worker.attempt_log import ROLES
from worker.owner import Owner

SessionLink = Link[worker_pb2.SessionResponse, worker_pb2.SessionRequest]


class Session:
    """Compared by identity: a router that comes back has another one. Logs of its rows add to
    `tokens`, which go out with the next message."""

    def __init__(self, owner: Owner, link: SessionLink, now: float) -> None:
        self.owner = owner
        self.heard_s = now  # when the latest message came
        self.tokens = {role: ColumnWriter(role) for role in ROLES}
        self._link = link
        self._load_sent_s: float | None = None

    @property
    def n_tokens(self) -> int:
        """How many wait to be sent."""
        return sum(map(len, self.tokens.values()))

    def take_tokens(self) -> list[worker_pb2.TokenColumns]:
        return [writer.take() for writer in self.tokens.values() if writer.rows]

    def needs_load(self, now: float, every_s: float) -> bool:
        """Whether no load report has gone out for every_s."""
        return self._load_sent_s is None or now >= self._load_sent_s + every_s

    def send(self, response: worker_pb2.SessionResponse, now: float) -> None:
        """Never blocks. Whoever receives finds out that a link is broken; logs keep the news."""
        if response.HasField("load"):
            self._load_sent_s = now
        try:
            self._link.send(response)
        except LinkBrokenError:
            return

    def close(self) -> None:
        self._link.close()
