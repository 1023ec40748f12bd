"""The Redis commands for the store. Scripts are sent in full each time: a server that has
restarted, or a replica that has taken over, may not have them, and a kilobyte costs little."""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twolane.attempt_number import fence_of
from twolane.router.requests.request import Label
from twolane.router.shared import keys
from twolane.router.shared.keys import Keys
from twolane.router.store import (
    ADMITTED,
    Ask,
    Found,
    Held,
    Placement,
    RouterRecord,
    Short,
    Verdict,
)
from twolane.rpc.log_rate import LogRate
from twolane.security.keys import TenantLimits

log = logging.getLogger(__name__)
_LUA = Path(__file__).parent / "lua"
ADMIT, KEEP, RELEASE, HERE = (
    (_LUA / f"{name}.lua").read_text() for name in ("admit", "keep", "release", "here")
)
EVENT = "event"  # the field with a ClusterEvent
CONCURRENT_RETRY_S = 1.0  # a guess: when a running request ends is not known
_ENDPOINTS = ("endpoint", "http_endpoint", "worker_endpoint")
_log_rate = LogRate()

Command = tuple[Any, ...]


@dataclass(slots=True)
class Own:
    """A submission that this router answers. `n_taken` is the number of tokens that the store has
    counted for it, as far as this router knows."""

    label: Label
    limits: TenantLimits
    n_taken: float = 0.0
    placement: Placement | None = None

    @property
    def has_quota(self) -> bool:
        quotas = self.limits.requests_per_s, self.limits.tokens_per_min, self.limits.concurrent
        return any(quota is not None for quota in quotas)


class Commands:
    """The commands of the router `name`, with the cluster's `keys`."""

    def __init__(self, name: str, keys: Keys) -> None:
        self.name = name
        self._keys = keys

    def admit(self, ask: Ask) -> Command:
        limits, tenant = ask.limits, ask.label.tenant
        places = self._keys.claim(ask.label), self._keys.live(tenant), self._keys.quotas(tenant)
        return (
            "EVAL", ADMIT, 3, *places,
            self.name, ask.submission_id, keys.LEASE_MS, self._keys.router_prefix, keys.QUOTA_MS,
            _said(limits.requests_per_s), _said(limits.tokens_per_min), _said(limits.concurrent),
            float(ask.n_tokens),
        )  # fmt: skip

    def keep(self, submission_id: str, own: Own) -> Command:
        tenant, at = own.label.tenant, own.placement
        places = self._keys.claim(own.label), self._keys.index(submission_id)
        fence = fence_of(at.attempt) if at else 0
        attempt = (at.attempt, f"{at.prefill_epoch:x}", f"{at.decode_epoch:x}") if at else ("",) * 3
        return (
            "EVAL", KEEP, 3, *places, self._keys.live(tenant),
            self.name, submission_id, keys.LEASE_MS, keys.INDEX_MS, tenant, fence, *attempt,
            int(own.has_quota), float(own.n_taken),
        )  # fmt: skip

    def release(self, submission_id: str, own: Own, n_tokens: int) -> Command:
        tenant, k = own.label.tenant, self._keys
        places = k.claim(own.label), k.index(submission_id), k.live(tenant), k.quotas(tenant)
        return (
            "EVAL", RELEASE, 4, *places,
            self.name, submission_id, keys.QUOTA_MS, _said(own.limits.tokens_per_min),
            n_tokens, float(own.n_taken),
        )  # fmt: skip

    def here(self, record: RouterRecord) -> Command:
        places = self._keys.routers, self._keys.router_prefix + self.name
        fields = {
            "router_id": record.router_id,
            "epoch": f"{record.epoch:x}",
            "endpoint": record.endpoint,
            "http_endpoint": record.http_endpoint,
            "worker_endpoint": record.worker_endpoint,
        }
        said = [part for field in fields.items() for part in field]
        prefix = self._keys.router_prefix
        return ("EVAL", HERE, 2, *places, prefix, self.name, keys.ROUTER_MS, *said)

    def gone(self) -> list[Command]:
        """The commands that remove this router."""
        own = self._keys.router_prefix + self.name
        return [("ZREM", self._keys.routers, self.name), ("DEL", own)]

    def find(self, submission_id: str) -> Command:
        return ("HGETALL", self._keys.index(submission_id))

    def note_prefix(self, hashes: Sequence[int], epoch: int) -> Command:
        place, most = self._keys.prefixes, keys.PREFIXES
        names = array("Q", hashes).tobytes()
        fields = ("by", self.name, "epoch", f"{epoch:x}", "names", names)
        return ("XADD", place, "MAXLEN", "~", most, "*", *fields)

    def event(self, kind: str, text: str, event: bytes = b"") -> Command:
        place, most = self._keys.events, keys.EVENTS
        fields = ("by", self.name, "kind", kind, "text", text, EVENT, event)
        return ("XADD", place, "MAXLEN", "~", most, "*", *fields)

    def events(self, most: int) -> Command:
        return ("XREVRANGE", self._keys.events, "+", "-", "COUNT", most)


def events(answer: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> list[bytes]:
    """Parse the answer to `Commands.events`: the events that routers have kept there."""
    name = EVENT.encode()
    return [fields[name] for _, fields in answer if fields.get(name)]


def verdict(answer: Sequence[bytes]) -> Verdict:
    """Parse the answer to `Commands.admit`."""
    what, *rest = (part.decode() for part in answer)
    if what == "held":
        router, submission_id = rest
        return Held(submission_id, router)
    if what == "short":
        quota, wait_ms, left = rest
        wait_s = float(wait_ms) / 1000 if wait_ms else CONCURRENT_RETRY_S
        return Short(quota, wait_s, float(left))
    return ADMITTED


def found(answer: Mapping[bytes, bytes]) -> Found | None:
    """Parse the answer to `Commands.find`."""
    fields = {name.decode(): value.decode() for name, value in answer.items()}
    if "attempt" not in fields:
        return None
    prefill, decode = int(fields["prefill"], 16), int(fields["decode"], 16)
    placement = Placement(int(fields["attempt"]), prefill, decode)
    return Found(fields["router"], fields["tenant"], placement)


def routers(answer: Sequence[Sequence[bytes]]) -> Iterator[RouterRecord]:
    """Parse the answer to `Commands.here`. Other versions of routers write records, too: fields
    that this one does not know are ignored, and records that it cannot read are skipped."""
    for flat in answer:
        if not flat:
            continue  # its lease has expired meanwhile
        fields = dict(zip(flat[::2], flat[1::2], strict=False))
        try:
            record = RouterRecord(
                router_id=fields[b"router_id"].decode(),
                epoch=int(fields[b"epoch"], 16),
                **{name: fields.get(name.encode(), b"").decode() for name in _ENDPOINTS},
            )
        except (KeyError, ValueError) as error:
            if n := _log_rate.take("record", time.monotonic()):
                log.warning("skipped %d unreadable records of routers; the last: %r", n, error)
            continue
        yield record


def _said(quota: float | None) -> float | str:
    return "" if quota is None else quota
