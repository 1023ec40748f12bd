"""One stream from one router, as the rest of a worker sees it."""

from __future__ import annotations

from collections.abc import Sequence

from twolane.rpc.link import Link, LinkBrokenError
from twolane.v1 import worker_pb2
from worker.news import Item
from worker.owner import Owner

SessionLink = Link[worker_pb2.SessionResponse, worker_pb2.SessionRequest]


class Session:
    """Compared by identity: a router that comes back has another one."""

    def __init__(self, owner: Owner, link: SessionLink, now: float) -> None:
        self.owner = owner
        self.heard_s = now  # when the latest message came
        self._link = link
        self._load_sent_s: float | None = None

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


def response_of(items: Sequence[Item]) -> worker_pb2.SessionResponse:
    """One message for all the news of a step."""
    tokens = [item for item in items if isinstance(item, worker_pb2.TokenEvent)]
    if len(tokens) == len(items):
        return worker_pb2.SessionResponse(tokens=tokens)
    rows = [item for item in items if isinstance(item, worker_pb2.RowEvent)]
    return worker_pb2.SessionResponse(tokens=tokens, rows=rows)
