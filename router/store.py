"""The interface of the store that several routers of one cluster share, and its local stand-in.

    claims       which submission runs under which label
    quotas       a tenant's recent use and running requests, at all routers together
    index        which router answers a submission, and which workers have its row
    routers      the other routers
    prefixes     which worker was assigned which prompt prefix

All of it is advice, and nothing here is needed for safety: workers refuse a second row with the
label of a live one, and know its owner. A shared store that cannot be reached admits everything.
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
    """A submission that asks for its label, and for its part of the tenant's quotas. `n_tokens` is
    an estimate, which `Store.release` corrects."""

    label: Label
    submission_id: str
    limits: TenantLimits
    n_tokens: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """The submission may run."""


@dataclass(frozen=True, slots=True)
class Held:
    """The label belongs to another submission, which `router` answers (empty: this router). If
    `submission_id` is the one that asked, it holds another label, or is being asked for already."""

    submission_id: str
    router: str = ""


@dataclass(frozen=True, slots=True)
class Short:
    """A quota of the tenant is used up: which one, when to retry, and what is left of it."""

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
    """The index's entry of a submission, which may be outdated."""

    router: str
    tenant: str
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRecord:
    """An incarnation of a router, and where it listens."""

    router_id: str
    epoch: int
    endpoint: str = ""  # host:port of its gRPC door
    http_endpoint: str = ""
    worker_endpoint: str = ""  # where workers and other routers call it

    @property
    def name(self) -> str:
        """The name of this incarnation."""
        return f"{self.router_id}.{self.epoch:x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of the shared store. `address` has no secrets. `note` says what is wrong."""

    address: str
    is_up: bool
    note: str = ""
    dropped: int = 0  # writes dropped because the queue was full
    clock_off_s: float = 0.0  # its clock, against this router's


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
    """Receives the prompt prefixes that other routers have assigned, and to which worker."""

    def __call__(self, hashes: Sequence[int], epoch: int) -> None: ...


class Store(Protocol):
    """Only `admit` and `find` wait for an answer, with a short timeout. No method raises."""

    @property
    def health(self) -> Health | None:
        """The store's state; None if nothing is shared."""
        ...

    @property
    def quota_parts(self) -> int:
        """The number of parts into which quotas are divided now, of which this router uses one; 1
        if the store counts for all routers."""
        ...

    async def admit(self, ask: Ask) -> Verdict:
        """Claim the label for the submission, and take its part of the tenant's quotas. May be
        called again for the same submission."""
        ...

    def own(self, label: Label, submission_id: str, limits: TenantLimits, n_charged: float) -> None:
        """Record that this router answers the submission, which another router may have admitted.
        Its tenant was charged `n_charged` tokens, as far as this router knows."""
        ...

    def release(self, submission_id: str, n_tokens: int) -> None:
        """Release a submission that is over and used `n_tokens`: frees its label, and corrects the
        quotas. Does nothing if it is unknown."""
        ...

    def place(self, submission_id: str, placement: Placement) -> None:
        """Record the submission's new attempt."""
        ...

    async def find(self, submission_id: str) -> Found | None:
        """Find which router answers a submission. None if unknown, or if there was no answer in
        time."""
        ...

    def routers(self) -> Sequence[RouterRecord]:
        """The other routers that were running recently."""
        ...

    def introduce(self, record: RouterRecord) -> None:
        """Publish this router's record for the others."""
        ...

    def note_routers(self, n: int) -> None:
        """Record how many routers are known from other sources, this one included."""
        ...

    def note_prefix(self, hashes: Sequence[int], epoch: int) -> None:
        """Record that a worker is assigned a prompt with these prefixes."""
        ...

    def listen(self, sink: PrefixSink) -> None:
        """Pass the prefixes that other routers record to `sink`."""
        ...

    def keep_event(self, kind: str, event: bytes) -> None:
        """Keep an event for operators, as far as there is room and the store is up."""
        ...

    async def events(self, most: int) -> Sequence[bytes]:
        """The latest events that routers have kept, the youngest first; none if the store does not
        answer."""
        ...


class LocalStore:
    """The store of a router without a shared one. Quotas are counted by its accounts; each known
    router uses a part of them."""

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
        """As `admit`. A submission has one label: another one is refused."""
        holder = self._holders.get(label, submission_id)
        if holder != submission_id or self._labels.get(submission_id, label) != label:
            return Held(holder)
        self._holders[label] = submission_id
        self._labels[submission_id] = label
        return ADMITTED

    def own(self, label: Label, submission_id: str, limits: TenantLimits, n_charged: float) -> None:
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

    def keep_event(self, kind: str, event: bytes) -> None:
        pass

    async def events(self, most: int) -> Sequence[bytes]:
        return ()
