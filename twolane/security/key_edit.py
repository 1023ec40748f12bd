"""Edits a key file: adds or revokes a key. The file is replaced atomically, the one that a symbolic
link leads to; it keeps its mode, and its owner where root edits it. Only its owner can read a new
file. Concurrent edits wait for each other."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import yaml

from twolane.errors import InvalidRequestError
from twolane.security.contexts import followed
from twolane.security.identity import Role
from twolane.security.keys import (
    KEY_PREFIX,
    ApiKey,
    KeyFileError,
    KeyRing,
    TenantLimits,
    digest,
    fault_of,
    read_keys,
)

_HEAD = "# API keys of a twolane cluster, as hashes; `twolane auth` rewrites this file.\n"


def create_key(
    path: Path,
    tenant: str,
    *,
    role: Role = Role.CLIENT,
    expires_in: timedelta | None = None,
    limits: dict[str, Any] | None = None,
) -> tuple[str, ApiKey]:
    """Add a key; create the file if it is missing. Returns the key for the client, which is stored
    nowhere, and its entry in the file. `limits` are the fields of `TenantLimits` to change for the
    tenant. Raises `KeyFileError`, and `msgspec.ValidationError` for a value out of its bounds."""
    if limits and not tenant:
        raise InvalidRequestError("quotas are a tenant's: name one", field="tenant")
    now = datetime.now(UTC).replace(microsecond=0)
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    key = _checked(
        ApiKey(
            id=key_id,
            tenant=tenant,
            sha256=digest(secret),
            role=role,
            created=now,
            expires=None if expires_in is None else now + expires_in,
        )
    )
    with _changing(path) as write:
        ring = KeyRing() if write.found is None else read_keys(path)
        tenants = dict(ring.tenants)
        if limits:
            before = tenants.get(tenant, TenantLimits())
            tenants[tenant] = _checked(msgspec.structs.replace(before, **limits))
        write(KeyRing(keys=(*ring.keys, key), tenants=tenants))
    return f"{KEY_PREFIX}_{key_id}_{secret}", key


def revoke_key(path: Path, key_id: str) -> ApiKey:
    """Revoke a key and return its new entry. Raises `KeyFileError`, and `InvalidRequestError` if
    there is no such key."""
    with _changing(path) as write:
        ring = read_keys(path)
        key = ring.by_id().get(key_id)
        if key is None:
            raise InvalidRequestError(f"{path} has no key {key_id!r}", field="id")
        revoked = msgspec.structs.replace(key, revoked=True)
        keys = tuple(revoked if other.id == key_id else other for other in ring.keys)
        write(KeyRing(keys=keys, tenants=ring.tenants))
    return revoked


class _Writer:
    """Replaces a file, of which `found` is the state; None: there is none."""

    def __init__(self, path: Path) -> None:
        """Raises `KeyFileError` for what is no file that can be replaced, such as a device."""
        self._path = path
        self.found = _state(path)

    def __call__(self, ring: KeyRing) -> None:
        if why := fault_of(_checked(ring)):
            raise InvalidRequestError(why)
        text = yaml.safe_dump(msgspec.to_builtins(ring), sort_keys=False, allow_unicode=True)
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        try:
            with open(handle, "w", encoding="utf-8") as file:  # of mode 0600
                if self.found is not None:
                    _make_alike(file.fileno(), self.found)
                file.write(_HEAD + text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self._path)
        except BaseException:
            os.unlink(name)
            raise


def _state(path: Path) -> os.stat_result | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise KeyFileError(f"{path}: not a regular file")
    return found


def _make_alike(handle: int, found: os.stat_result) -> None:
    """Give a new file the mode of the one that it replaces, and its owner, which only root can."""
    if os.geteuid() == 0:
        os.fchown(handle, found.st_uid, found.st_gid)
    os.fchmod(handle, stat.S_IMODE(found.st_mode))


@contextmanager
def _changing(path: Path) -> Iterator[_Writer]:
    """Hold a lock on the folder, because the file itself is replaced."""
    path = followed(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield _Writer(path)
    finally:
        os.close(folder)


def _checked(value: Any) -> Any:
    """Validate a struct by encoding and decoding it: its constructor validates nothing."""
    return msgspec.convert(msgspec.to_builtins(value), type(value))
