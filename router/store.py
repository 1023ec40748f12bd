"""What several routers of one cluster share, as far as anything is there to share it in.

    claims       which submission runs under which label
    quotas       what a tenant has used lately and has under way, at all routers together
    index        which router answers a submission, and which workers have its row
    routers      who else there is
    prefixes     which worker was given which beginning of a prompt

All of it is advice. Nothing here is needed for safety: workers refuse a second row under a label
that a live one holds, and know its owner. A store that is shared and cannot be reached says yes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from twolane.router.requests.request import Label
from twolane.security.keys import TenantLimits
from twolane.v1 import worker_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A submission that wants to run under its label, within what its tenant may have. `n_tokens`
    is an estimate, which `Store.release` settles."""

    label: Label
    submission_id: str
    limits: TenantLimits
    n_tokens: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """It may run."""


@dataclass(frozen=True, slots=True)
class Held:
    """Its label is that of another submission, which `router` answers (empty: this one)."""

    submission_id: str
    router: str = ""


@dataclass(frozen=True, slots=True)
class Short:
    """A quota of its tenant is used up: which one, when it is not, and what is left of it."""

    quota: str  # requests, tokens, concurrent
    wait_s: float
    remaining: float


ADMITTED = Admitted()
Verdict = Admitted | Held | Short


class Placement(NamedTuple):
    """The latest attempt of a submission."""

    attempt: int
    prefill_epoch: int
    decode_epoch: int


class Found(NamedTuple):
    """What the index says of a submission: perhaps no longer true."""

    router: str
    tenant: str
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRecord:
    """A router of the cluster: this incarnation of it, and where it listens."""

    router_id: str
    epoch: int
    endpoint: str = ""  # host:port of its gRPC door
    http_endpoint: str = ""
    worker_endpoint: str = ""  # where workers and other routers call it

    @property
    def name(self) -> str:
        """Of this incarnation alone."""
        return f"{self.router_id}.{self.epoch:x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Of the shared store. `address` has no secrets. `note` says what is wrong."""

    address: str
    is_up: bool
    note: str = ""
    dropped: int = 0  # writes that found no room in the queue


def to_address(record: RouterRecord) -> worker_pb2.RouterAddress:
    return worker_pb2.RouterAddress(
        router_id=record.router_id,
        router_epoch=record.epoch,
        workers_endpoint=record.worker_endpoint,
        grpc_endpoint=record.endpoint,
        http_endpoint=record.http_endpoint,
    )


def to_record(address: worker_pb2.RouterAddress) -> RouterRecord:
    return RouterRecord(
        router_id=address.router_id,
        epoch=address.router_epoch,
        endpoint=address.grpc_endpoint,
        http_endpoint=address.http_endpoint,
        worker_endpoint=address.workers_endpoint,
    )


class PrefixSink(Protocol):
    """Who wants to know which worker was given which beginnings of a prompt, by other routers."""

    def __call__(self, hashes: Sequence[int], epoch: int) -> None: ...


class Store(Protocol):
    """Only `admit` and `find` are waited for, for a moment at most. No method raises."""

    @property
    def health(self) -> Health | None:
        """None: nothing is shared."""
        ...

    @property
    def quota_parts(self) -> int:
        """Into how many parts quotas are divided now, of which one is this router's: 1 where the
        store counts for all routers."""
        ...

    async def admit(self, ask: Ask) -> Verdict:
        """Make the label the submission's, and take what it needs of its tenant's quotas. May be
        called again for the same one."""
        ...

    def own(self, label: Label, submission_id: str, limits: TenantLimits) -> None:
        """This router answers the submission, which `admit` may not have been asked for: another
        one has begun it."""
        ...

    def release(self, submission_id: str, n_tokens: int) -> None:
        """The submission is over and had so many tokens: its label is free, its quotas are settled.
        Unknown ones change nothing."""
        ...

    def place(self, submission_id: str, placement: Placement) -> None:
        """The submission has another attempt."""
        ...

    async def find(self, submission_id: str) -> Found | None:
        """Who answers it. None: not known, not known in time."""
        ...

    def routers(self) -> Sequence[RouterRecord]:
        """The other routers that were there lately."""
        ...

    def introduce(self, record: RouterRecord) -> None:
        """This router serves, and others are to know it."""
        ...

    def note_routers(self, n: int) -> None:
        """So many are known now by other ways, this one included."""
        ...

    def note_prefix(self, hashes: Sequence[int], epoch: int) -> None:
        """A worker is given a prompt with these beginnings."""
        ...

    def listen(self, sink: PrefixSink) -> None:
        """Have `sink` hear what other routers note."""
        ...


class LocalStore:
    """Of one router. The quotas are its accounts': each router that is known has a part of them."""

    health: Health | None = None
    quota_parts = 1

    def __init__(self) -> None:
        self._holders: dict[Label, str] = {}
        self._labels: dict[str, Label] = {}  # by submission

    def __len__(self) -> int:
        return len(self._holders)

    def holds(self, submission_id: str) -> bool:
        return submission_id in self._labels

    async def admit(self, ask: Ask) -> Verdict:
        return self.claim(ask.label, ask.submission_id)

    def claim(self, label: Label, submission_id: str) -> Verdict:
        holder = self._holders.setdefault(label, submission_id)
        if holder != submission_id:
            return Held(holder)
        self._labels[submission_id] = label
        return ADMITTED

    def own(self, label: Label, submission_id: str, limits: TenantLimits) -> None:
        self.claim(label, submission_id)

    def release(self, submission_id: str, n_tokens: int) -> None:
        label = self._labels.pop(submission_id, None)
        if label is not None:
            del self._holders[label]

    def place(self, submission_id: str, placement: Placement) -> None:
        pass

    async def find(self, submission_id: str) -> Found | None:
        return None

    def routers(self) -> Sequence[RouterRecord]:
        return ()

    def introduce(self, record: RouterRecord) -> None:
        pass

    def note_routers(self, n: int) -> None:
        self.quota_parts = n

    def note_prefix(self, hashes: Sequence[int], epoch: int) -> None:
        pass

    def listen(self, sink: PrefixSink) -> None:
        pass
