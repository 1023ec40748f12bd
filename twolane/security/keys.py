"""API keys: what a client presents, and the file with what a server must know about each key.

    tl_<id>_<secret>       sent by a client as `authorization: Bearer tl_…`

    keys:                  keys.yaml
    - id: 3f9a2c71d04b
      tenant: acme
      sha256: 9b74c9897bac770ffc029102a200c5de0f5f1d…
      expires: 2027-01-31T00:00:00Z
    tenants:
      acme: {weight: 2, requests_per_s: 10, tokens_per_min: 600000, concurrent: 64}

A secret is 256 random bits, so its plain SHA-256 reveals nothing about it. A tenant without an
entry under `tenants` has no quota.
"""

from __future__ import annotations

import hmac
import math
import re
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
_ID = r"^[A-Za-z0-9]{1,64}$"
_DIGEST = r"^[0-9a-f]{64}$"
NAME_BOUND = "1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
_IN_WORDS = {
    rf"{_NAME}|^$": NAME_BOUND,
    _NAME: NAME_BOUND,
    _ID: "1 to 64 letters and digits",
    _DIGEST: "64 digits in lower-case hexadecimal",
}
_NO_DIGEST = sha256(b"").hexdigest()  # compared with if there is no such key

MaybeTenant = Annotated[str, msgspec.Meta(pattern=rf"{_NAME}|^$")]
TenantName = Annotated[str, msgspec.Meta(pattern=_NAME)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class KeyFileError(Exception):
    """The key file cannot be used. The message has the file, the field and the error."""


class TenantLimits(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A tenant's share and its quotas; None: no quota.

    `weight` is its share of a full cluster, relative to other tenants'. `tokens_per_min` counts
    prompts and answers; `concurrent` counts waiting and running requests. Requests above
    `max_priority` are refused, because tenants take turns only within a priority.
    """

    weight: Positive = 1.0
    requests_per_s: Positive | None = None
    tokens_per_min: AtLeastOne | None = None
    concurrent: AtLeastOne | None = None
    max_priority: int | None = None


class ApiKey(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A key's entry in the file. `sha256` is the hash of its secret, in lower-case hexadecimal.
    Keys of clients have a tenant, those of viewers and operators have none; other roles have no
    keys."""

    id: Annotated[str, msgspec.Meta(pattern=_ID)]
    tenant: MaybeTenant = ""
    sha256: Annotated[str, msgspec.Meta(pattern=_DIGEST)]
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
    """The contents of a key file."""

    keys: tuple[ApiKey, ...] = ()
    tenants: dict[TenantName, TenantLimits] = {}

    def by_id(self) -> dict[str, ApiKey]:
        return {key.id: key for key in self.keys}


def find_key(keys: dict[str, ApiKey], shown: str, now: datetime) -> ApiKey:
    """The entry, among `keys` by id, of the key that a caller presents. Raises
    `UnauthenticatedError` if it is malformed, unknown, revoked or expired. Only a caller with the
    right secret learns why, and an unknown id takes as long as a wrong secret."""
    prefix, _, rest = shown.partition("_")
    key_id, _, secret = rest.partition("_")
    if prefix != KEY_PREFIX or not key_id or not secret:
        raise UnauthenticatedError(
            f"this is not a twolane API key, {KEY_PREFIX}_<id>_<secret>; {HOW_TO_GET_ONE}"
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
    """The hash of a secret, as it is stored in key files."""
    return sha256(secret.encode(errors="replace")).hexdigest()


def read_keys(path: Path) -> KeyRing:
    """Read a key file. Raises `KeyFileError` if it is missing or not YAML, if a field is unknown,
    missing or invalid, or if an id occurs twice."""
    import yaml  # needed only with a key file

    try:
        value: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        ring = msgspec.convert({} if value is None else value, KeyRing)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KeyFileError(f"{path}: {error}") from error
    except yaml.YAMLError as error:
        raise KeyFileError(f"{path}: not YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise KeyFileError(f"{path}: {in_words(error)}") from error
    if why := fault_of(ring):
        raise KeyFileError(f"{path}: {why}")
    return ring


def is_name(text: str) -> bool:
    """Whether a tenant may be called so (`NAME_BOUND`)."""
    return re.fullmatch(_NAME, text) is not None


def in_words(error: msgspec.ValidationError) -> str:
    """Its text, without regular expressions."""
    text = str(error)
    for pattern, words in _IN_WORDS.items():
        text = text.replace(f"`str` matching regex '{pattern}'", words)
    return text


def fault_of(ring: KeyRing) -> str:
    """An error in the keys that the types of their fields do not exclude; empty if there is
    none."""
    seen: set[str] = set()
    for tenant, its in ring.tenants.items():
        for name in ("weight", "requests_per_s"):
            if getattr(its, name) == math.inf:
                return f"{name} of tenant {tenant} is infinite; without it there is no quota"
    for key in ring.keys:
        if key.id in seen:
            return f"key {key.id} occurs twice"
        seen.add(key.id)
        if key.role not in ROLES:
            return f"key {key.id} is for a {key.role}; keys are for {', '.join(ROLES)}"
        if bool(key.tenant) != (key.role is Role.CLIENT):
            return f"key {key.id}: a client needs a tenant, and nobody else has one"
    return ""
