"""What `who_am_i()` gives back: who a cluster takes its caller for."""

from __future__ import annotations

from dataclasses import dataclass, fields

from twolane.v1 import inference_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """One quota of a tenant: requests a second, tokens a minute, or concurrent requests. Below 0
    remains what running requests may still take beyond it."""

    name: str  # requests, tokens, concurrent
    limit: float
    remaining: float
    reset_s: float  # until all of it is there again, if nothing is asked meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`name` is that of an API key or certificate, and empty where neither was shown."""

    role: str
    name: str
    tenant: str
    quotas: tuple[Quota, ...] = ()

    @classmethod
    def from_proto(cls, message: inference_pb2.WhoAmIResponse) -> Caller:
        return cls(
            role=message.role,
            name=message.name,
            tenant=message.tenant,
            quotas=tuple(
                Quota(**{f.name: getattr(quota, f.name) for f in fields(Quota)})
                for quota in message.quotas
            ),
        )
