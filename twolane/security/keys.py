"""API keys: what a client shows, and the file that holds what a server must know of each.

    tl_<id>_<secret>       shown by a client, as `authorization: Bearer tl_…`

    keys:                  keys.yaml
    - id: 3f9a2c71d04b
      tenant: acme
      sha256: 9b74c9897bac770ffc029102a200c5de0f5f1d…
      expires: 2027-01-31T00:00:00Z
    tenants:
      acme: {weight: 2, requests_per_s: 10, tokens_per_min: 600000, concurrent: 64}

A secret is 256 random bits, so its plain SHA-256 says nothing about it. A tenant that has no entry
under `tenants` has no quota.
"""

from __future__ import annotations

import hmac
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec

from twolane.errors import UnauthenticatedError
from twolane.security.identity import Role

KEY_PREFIX = "tl"
ROLES = (Role.CLIENT, Role.VIEWER, Role.OPERATOR)
HOW_TO_GET_ONE = "an operator makes one with `twolane auth create-key`"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_NO_DIGEST = sha256(b"").hexdigest()  # compared with when there is no such key

MaybeTenant = Annotated[str, msgspec.Meta(pattern=rf"{_NAME}|^$")]
TenantName = Annotated[str, msgspec.Meta(pattern=_NAME)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class KeyFileError(Exception):
    """The file of keys cannot be used. The message names the file, the place and the fault."""


class TenantLimits(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A tenant's share and its quotas; None is no quota.

    `weight` is its part of a full cluster, compared with other tenants'. `tokens_per_min` counts
    prompts and answers; `concurrent` counts requests that wait or run. Requests beyond
    `max_priority` are refused: tenants share within a priority only.
    """

    weight: Positive = 1.0
    requests_per_s: Positive | None = None
    tokens_per_min: AtLeastOne | None = None
    concurrent: AtLeastOne | None = None
    max_priority: int | None = None


class ApiKey(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What a server knows of a key. `sha256` is of its secret, in lower-case hexadecimal. Clients
    have a tenant, viewers and operators have none; there are no keys of other roles."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]{1,64}$")]
    tenant: MaybeTenant = ""
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    role: Role = Role.CLIENT
    created: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    revoked: bool = False

    def state(self, now: datetime) -> str:
        """active, expired or revoked. `now` has a time zone."""
        if self.revoked:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "active"


class KeyRing(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The contents of a file of keys."""

    keys: tuple[ApiKey, ...] = ()
    tenants: dict[TenantName, TenantLimits] = {}

    def by_id(self) -> dict[str, ApiKey]:
        return {key.id: key for key in self.keys}


def find_key(keys: dict[str, ApiKey], shown: str, now: datetime) -> ApiKey:
    """The key of `keys`, by id, that a caller shows. Raises `UnauthenticatedError`: it is
    malformed, unknown, revoked or expired. What a key is like is told to those alone who have its
    secret, and an unknown id takes as long as a wrong secret."""
    prefix, _, rest = shown.partition("_")
    key_id, _, secret = rest.partition("_")
    if prefix != KEY_PREFIX or not key_id or not secret:
        raise UnauthenticatedError(
            f"that is no API key of twolane's, {KEY_PREFIX}_<id>_<secret>; {HOW_TO_GET_ONE}"
        )
    key = keys.get(key_id)
    known = _NO_DIGEST if key is None else key.sha256
    is_right = hmac.compare_digest(digest(secret), known)  # guard: API key
    if key is None or not is_right:
        raise UnauthenticatedError(f"the API key is unknown here; {HOW_TO_GET_ONE}")
    state = key.state(now)
    if state != "active":
        raise UnauthenticatedError(
            f"API key {key.id} is {state}; {HOW_TO_GET_ONE}", metadata={"key": key.id}
        )
    return key


def digest(secret: str) -> str:
    """As files hold it."""
    return sha256(secret.encode(errors="replace")).hexdigest()


def read_keys(path: Path) -> KeyRing:
    """Raises `KeyFileError`: no such file, no YAML, a field that is unknown, missing or wrong,
    one id twice."""
    import yaml  # for those alone that have such a file

    try:
        value: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        ring = msgspec.convert({} if value is None else value, KeyRing)
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path}: {error}") from error
    except yaml.YAMLError as error:
        raise KeyFileError(f"{path}: not YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise KeyFileError(f"{path}: {error}") from error
    if why := fault_of(ring):
        raise KeyFileError(f"{path}: {why}")
    return ring


def fault_of(ring: KeyRing) -> str:
    """What is wrong with its keys beyond their fields' types; empty: nothing."""
    seen: set[str] = set()
    for key in ring.keys:
        if key.id in seen:
            return f"key {key.id} is there twice"
        seen.add(key.id)
        if key.role not in ROLES:
            return f"key {key.id} is for a {key.role}; keys are for {', '.join(ROLES)}"
        if bool(key.tenant) != (key.role is Role.CLIENT):
            return f"key {key.id}: a client needs a tenant, and nobody else has one"
    return ""
