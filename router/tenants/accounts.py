"""Quotas: what each tenant has used recently, and its running requests.

    admission       takes one request, and its expected tokens
    end             corrects them to the tokens it used; none if no worker had it

A request with more tokens than a minute's quota is admitted when the whole quota is available. It
leaves a debt, which the following minutes pay off.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from twolane.errors import InvalidParameterError, QuotaError
from twolane.refusals import Refusal
from twolane.router.tenants.bucket import Bucket
from twolane.security.keys import TenantLimits

CONCURRENT_RETRY_S = 1.0  # a guess: when a running request ends is not known
MINUTE_S = 60.0
LABEL_CHARS = 12


@dataclass(frozen=True, slots=True)
class Level:
    """The state of one quota. `reset_s` is the time until all of it is available again, if nothing
    more is requested."""

    name: str  # requests, tokens, concurrent
    limit: float
    remaining: float
    reset_s: float


class Account:
    """One tenant's quotas and counters."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        # the tenant's name in metrics, whose readers need not know a cluster's customers
        self.label = sha256(tenant.encode()).hexdigest()[:LABEL_CHARS] if tenant else ""
        self.limits = TenantLimits()
        self.n_live = 0  # requests that wait or run
        self.counters: Counter[str] = Counter()  # requests, prompt_tokens, output_tokens, refused
        self.parts = 1  # into how many parts its quotas are divided; this account uses one
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None

    def tune(self, limits: TenantLimits, now: float, parts: int = 1) -> None:
        """Apply changed limits. Each quota is divided into `parts`, of which this account uses
        one."""
        self.limits, self.parts = limits, parts
        self._requests = _tuned(self._requests, limits.requests_per_s, 1.0, now, parts)
        self._tokens = _tuned(self._tokens, limits.tokens_per_min, MINUTE_S, now, parts)

    def check(self, n_tokens: float, now: float) -> None:
        """Raise `QuotaError` if a request of `n_tokens` is not within the quotas. `n_tokens` is 0
        if it is not known yet."""
        most = self._concurrent
        if most is not None and self.n_live >= most:
            n = self.limits.concurrent
            what = f"{n} request{'s' * (n != 1)} at once{self._part(most)}"
            raise self._refused("concurrent", what, CONCURRENT_RETRY_S)
        if self._requests is not None and (wait_s := self._requests.wait_s(1, now)):
            per_s = self.limits.requests_per_s
            what = f"{per_s:g} request{'s' * (per_s != 1)} a second"
            what += self._part(self._requests.per_s)
            raise self._refused("requests", what, wait_s)
        if self._tokens is not None and (wait_s := self._tokens.wait_s(n_tokens, now)):
            what = f"{self.limits.tokens_per_min} tokens a minute"
            if n_tokens:
                what += f", of which {max(0.0, self._tokens.level(now)):.0f} are left, and this "
                what += f"request takes an estimated {n_tokens:.0f}"
            what += self._part(self._tokens.capacity)
            raise self._refused("tokens", what, wait_s)

    def check_priority(self, priority: int) -> None:
        """Raise `InvalidParameterError` if the tenant may not use this priority."""
        most = self.limits.max_priority
        if most is not None and priority > most:
            raise InvalidParameterError("priority", priority, f"at most {most} for this tenant")

    def take(self, n_tokens: float, now: float) -> None:
        """Record that a request of `n_tokens` was admitted."""
        self.n_live += 1
        self.counters["requests"] += 1
        if self._requests is not None:
            self._requests.take(1, now)
        if self._tokens is not None:
            self._tokens.take(n_tokens, now)

    def adopt(self) -> None:
        """Record a request that another router has admitted and charged, and that now runs here."""
        self.n_live += 1

    def settle(self, n_taken: float, n_prompt: int, n_output: int, now: float) -> None:
        """Record the end of a request that used these tokens, of `n_taken` at its admission."""
        self.n_live -= 1
        self.counters["prompt_tokens"] += n_prompt
        self.counters["output_tokens"] += n_output
        if self._tokens is not None:
            self._tokens.take(n_prompt + n_output - n_taken, now)

    def levels(self, now: float) -> Iterator[Level]:
        """The states of the tenant's quotas."""
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                reset_s = bucket.wait_s(bucket.capacity, now)
                yield Level(name, bucket.capacity, bucket.level(now), reset_s)
        most = self._concurrent
        if most is not None:
            yield Level("concurrent", most, most - self.n_live, 0.0)

    def refused_by_all(self, name: str, wait_s: float, remaining: float) -> QuotaError:
        """The error for a quota that the routers count together, of which `remaining` is left."""
        limits = self.limits
        what = {
            "concurrent": f"{limits.concurrent} requests at once",
            "requests": f"{limits.requests_per_s or 0:g} requests a second",
            "tokens": f"{limits.tokens_per_min} tokens a minute, of which {max(0, remaining):.0f} "
            "are left",
        }
        return self._refused(name, what[name], wait_s)

    @property
    def _concurrent(self) -> int | None:
        most = self.limits.concurrent
        return None if most is None else max(1, most // self.parts)

    def _part(self, own: float) -> str:
        """What this account has of a quota, if that is not all."""
        if self.parts == 1:
            return ""
        each = f"{own:.2f}".rstrip("0").rstrip(".")
        return f"; {self.parts} routers that share no store give {each} of it each"

    def _refused(self, name: str, what: str, wait_s: float) -> QuotaError:
        self.counters["refused"] += 1
        return QuotaError(
            f"the quota of tenant {self.tenant} is {what}",
            retry_after_s=math.ceil(wait_s * 1000) / 1000,  # in the wire's milliseconds, rounded up
            metadata={"quota": name, "tenant": self.tenant},
        )


NO_LIMITS = TenantLimits()


def no_limits(tenant: str) -> TenantLimits:
    """The limits of every tenant if none are configured."""
    return NO_LIMITS


class Accounts:
    """The accounts of all tenants seen so far. None is removed, as there are only as many as
    operators have made keys or certificates for."""

    def __init__(
        self, limits_of: Callable[[str], TenantLimits], parts: Callable[[], int] = lambda: 1
    ) -> None:
        """`parts` returns the number of parts into which quotas are divided now; these accounts use
        one."""
        self._limits_of = limits_of
        self._parts = parts
        self._accounts: dict[str, Account] = {}

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def of(self, tenant: str, now: float) -> Account:
        """The tenant's account, with its present limits."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(tenant)
        limits, parts = self._limits_of(tenant), self._parts()
        if limits is not account.limits or parts != account.parts:
            account.tune(limits, now, parts)
        return account

    def weight_of(self, tenant: str) -> float:
        return self._limits_of(tenant).weight


REFUSALS = {
    "requests": Refusal.QUOTA_REQUESTS,
    "tokens": Refusal.QUOTA_TOKENS,
    "concurrent": Refusal.QUOTA_CONCURRENT,
}


def _tuned(
    bucket: Bucket | None, quota: float | None, of_s: float, now: float, parts: int
) -> Bucket | None:
    """A bucket for one part of `quota` per `of_s` seconds; its capacity is at least one request."""
    if quota is None:
        return None
    per_s, capacity = quota / of_s / parts, max(1.0, quota / parts)
    if bucket is None:
        return Bucket(per_s, capacity, now)
    bucket.tune(per_s, capacity, now)
    return bucket
