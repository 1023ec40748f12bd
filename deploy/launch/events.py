"""Events of a cluster, shown to people by `twolane.deploy.cli.progress` and to programs as one line
of JSON each."""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from dataclasses import asdict, dataclass
from enum import StrEnum

from twolane.deploy.spec.spec_json import from_value
from twolane.v1 import cluster_pb2


class Kind(StrEnum):
    STARTING = "starting"  # a process is being started
    LOADING = "loading"  # it reads its model; text is the progress
    STARTED = "started"  # it serves: epoch, pid, its doors; text: device and dtype
    READY = "ready"  # the cluster answers, and takes acts: endpoint, http, admin
    DIED = "died"  # a process is proven dead: text says how
    ENDED = "ended"  # so is one that was to end
    RESTARTING = "restarting"  # text says when
    FENCED = "fenced"  # killed: text says why
    # A host is silent, and nothing proves that its processes have ended; text is the loss.
    LOST = "lost"
    FOUND = "found"  # a silent host answers again
    OPERATOR = "operator"  # an operator has given a command; text says who and what
    SCALED = "scaled"  # a pool is to have another size, or a worker is to go: text
    FAILED = "failed"  # the cluster cannot start: text says why
    STOPPING = "stopping"
    STOPPED = "stopped"  # only after a start; the end of the stream proves it in any case


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. `name` is that of a process or host, or empty for the whole cluster."""

    kind: Kind
    name: str = ""
    epoch: int = 0
    pid: int = 0
    endpoint: str = ""
    http: str = ""  # host:port of a router's HTTP door
    admin: str = ""  # unix:PATH of its door for operators
    metrics: str = ""  # host:port of its Prometheus page
    text: str = ""

    def to_json(self) -> str:
        return json.dumps({key: value for key, value in asdict(self).items() if value})


_MOST_SHOWN = 1_000


class History:
    """The latest events as JSON, numbered from 0 on, for those that come later to show. However old
    it is, the last that says that the cluster is ready or has failed is among them."""

    def __init__(self) -> None:
        self.n = 0  # so far; the number of the next one
        self._latest: deque[tuple[int, str]] = deque(maxlen=_MOST_SHOWN)
        self._outcome: tuple[int, str] | None = None

    def add(self, event: Event) -> None:
        numbered = self.n, event.to_json()
        self._latest.append(numbered)
        self.n += 1
        if event.kind in (Kind.READY, Kind.FAILED):
            self._outcome = numbered

    def since(self, after: int) -> list[str]:
        """Those from number `after` on that are kept."""
        kept = [*self._latest]
        if self._outcome is not None and self._outcome[0] < kept[0][0]:
            kept.insert(0, self._outcome)
        return [text for number, text in kept if number >= after]


_FOR_ROUTERS = {
    Kind.DIED, Kind.ENDED, Kind.RESTARTING, Kind.FENCED, Kind.LOST, Kind.FOUND, Kind.SCALED,
}  # fmt: skip
_MOST_KEPT = 200
_MOST_TEXT = 300


class News:
    """The latest events of one controller, for routers. `unheard` are those that no router may
    remember: a router keeps its events in memory, so those that it was told end with it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._numbers = itertools.count(1)
        self._latest: deque[cluster_pb2.ClusterEvent] = deque(maxlen=_MOST_KEPT)
        self._heard: set[str] = set()  # ids
        self._told: list[cluster_pb2.ClusterEvent] = []  # with the call under way

    @property
    def unheard(self) -> list[cluster_pb2.ClusterEvent]:
        return [event for event in self._latest if event.id not in self._heard]

    def note(self, event: Event) -> None:
        """Add it, if it is for routers."""
        if event.kind is Kind.STARTED and not event.epoch:  # a router, which remembers nothing
            self.tell_again()
        if event.kind not in _FOR_ROUTERS:
            return
        now, kind = time.time(), event.kind.value
        which = f"{event.name} ({event.epoch:016x})" if event.epoch else event.name
        which += f" {kind}" * (event.kind is not Kind.SCALED)  # whose text is a sentence
        self._latest.append(
            cluster_pb2.ClusterEvent(
                id=f"{int(now * 1000):013d}-{self._source}-{next(self._numbers)}",
                at=now,
                source=self._source,
                kind=f"process.{kind}",
                subject=event.name,
                text=f"{which}: {event.text}"[:_MOST_TEXT],
            )
        )

    def to_tell(self) -> list[cluster_pb2.ClusterEvent]:
        """The unheard ones, for one call to a router."""
        self._told = self.unheard
        return self._told

    def heard(self) -> None:
        """A router has answered that call. If one has started meanwhile, it may be another."""
        self._heard &= {event.id for event in self._latest}
        self._heard |= {event.id for event in self._told}

    def tell_again(self) -> None:
        """A router that may have heard them has ended, or does not answer. Routers leave out those
        that they have."""
        self._heard.clear()
        self._told = []


def read_event(text: str) -> Event | None:
    """None: it is of a kind that only another version has."""
    value = json.loads(text)
    return from_value(Event, value) if value["kind"] in {*Kind} else None
