"""A server's copy of its key file: reread when the file changes, kept when the file is invalid."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from pathlib import Path

from twolane.security.identity import Identity
from twolane.security.keys import KeyFileError, TenantLimits, find_key, read_keys

log = logging.getLogger(__name__)

NO_LIMITS = TenantLimits()
_Stamp = tuple[int, int, int, int]


class KeyFile:
    """Call `refresh` regularly, on any thread. If the file becomes invalid, that is logged and the
    keys read last stay in force."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises `KeyFileError` if it cannot be used."""
        self.path = path
        self._seen = _stamp(path)
        self._take()

    def identity(self, shown: str) -> Identity:
        """The identity of the caller with this key. Raises `UnauthenticatedError`."""
        key = find_key(self._keys, shown, datetime.now(UTC))
        return Identity(key.role, key.id, key.tenant)

    def limits(self, tenant: str) -> TenantLimits:
        return self._limits.get(tenant, NO_LIMITS)

    def is_active(self, key_id: str) -> bool:
        """Whether the key with that id would be accepted now."""
        key = self._keys.get(key_id)
        return key is not None and key.state(datetime.now(UTC)) == "active"

    def refresh(self) -> frozenset[str]:
        """Reread the file if it has changed. Returns the ids of keys that are no longer valid."""
        stamp = _stamp(self.path)
        if stamp == self._seen:
            return frozenset()
        self._seen = stamp
        before = self._keys
        try:
            self._take()
        except KeyFileError as error:
            log.error("the API keys stay as they were: %s", error)
            return frozenset()
        log.info("%s was read again: %d keys", self.path, len(self._keys))
        return frozenset(key_id for key_id in before if not self.is_active(key_id))

    def _take(self) -> None:
        ring = read_keys(self.path)
        self._keys, self._limits = ring.by_id(), ring.tenants


def _stamp(path: Path) -> _Stamp | None:
    """A value that differs when the file has changed; None if the file cannot be accessed."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns
