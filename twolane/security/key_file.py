"""A server's view of its file of keys: read again when it changes, kept when it breaks."""

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
    """Call `refresh` now and then, on any thread. A file that cannot be used any more changes
    nothing but the log: what was read last still holds."""

    def __init__(self, path: Path) -> None:
        """Raises `KeyFileError` if it cannot be used."""
        self.path = path
        self._seen = _stamp(path)
        self._take()

    def identity(self, shown: str) -> Identity:
        """Who shows this key. Raises `UnauthenticatedError`."""
        key = find_key(self._keys, shown, datetime.now(UTC))
        return Identity(key.role, key.id, key.tenant)

    def limits(self, tenant: str) -> TenantLimits:
        return self._limits.get(tenant, NO_LIMITS)

    def is_active(self, key_id: str) -> bool:
        """Whether that key would be accepted now."""
        key = self._keys.get(key_id)
        return key is not None and key.state(datetime.now(UTC)) == "active"

    def refresh(self) -> frozenset[str]:
        """Read the file if it has changed. Returns the ids of keys that no longer count by it."""
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
    """Different when the file has changed; None: it cannot be looked at."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns
