"""Which controller may act: the one that holds the Lease.

    free     ──▶ ours, renewed again and again ──▶ released at the end
    another's ──▶ ours, once it was not renewed for as long as it lasts

The wait for another's counts by our own clock: those of two machines are never compared. We hold it
for less time than others wait, so there is no moment at which two controllers hold it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from twolane.deploy.errors import DeposedError, StartError
from twolane.deploy.kubernetes.api import (
    ApiError,
    ConflictError,
    KubernetesApi,
    Lease,
    UnreachableError,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfig:
    """`lasts_s`: how long others wait. `held_s`: how long we hold it from the last renewal on."""

    name: str
    lasts_s: float = 15.0
    held_s: float = 10.0
    renew_s: float = 2.0


class ControllerLease:
    """`acquire`, then `keep` until cancelled, then `release`. `clock`: in seconds."""

    def __init__(
        self,
        api: KubernetesApi,
        config: LeaseConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holder = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._api = api
        self._config = config
        self._clock = clock
        self._until_s = float("-inf")
        self._others = ("", 0.0)  # version of another's, and since when it has that one

    @property
    def is_held(self) -> bool:
        return self._clock() < self._until_s

    async def acquire(self) -> None:
        """Returns when it is ours. Raises `StartError`."""
        is_told = False
        try:
            while not await self._take(await self._api.lease(self._config.name)):
                if not is_told:
                    log.info("another controller has the Lease %s: waiting", self._config.name)
                is_told = True
                await asyncio.sleep(self._config.renew_s)
        except (ApiError, UnreachableError) as error:
            raise StartError(f"the Lease {self._config.name}: {error!r}") from error

    async def keep(self) -> None:
        """Renew it until cancelled. While the server does not answer, it is not held after a while,
        and may be later. Raises `DeposedError` when another controller has it."""
        while True:
            await asyncio.sleep(self._config.renew_s)
            try:
                found = await self._api.lease(self._config.name)
                if found is not None and found.holder not in ("", self.holder):  # guard: another's
                    self._until_s = float("-inf")
                    raise DeposedError(f"{found.holder} has the Lease {self._config.name}")
                await self._take(found)
            except (ApiError, UnreachableError) as error:
                log.warning("the Lease %s: %r", self._config.name, error)

    async def release(self) -> None:
        """The next controller need not wait, if the server answers now."""
        self._until_s = float("-inf")
        try:
            found = await self._api.lease(self._config.name)
            if found is not None and found.holder == self.holder:
                await self._api.set_lease(self._config.name, "", self._config.lasts_s, found)
        except (ApiError, UnreachableError) as error:
            log.warning("the Lease %s is not released: %r", self._config.name, error)

    async def _take(self, found: Lease | None) -> bool:
        """Whether it is ours now. Raises `ApiError`, `UnreachableError`."""
        began_s = self._clock()
        if found is not None and found.holder not in ("", self.holder):
            if found.version != self._others[0]:
                self._others = found.version, began_s
            if began_s < self._others[1] + found.lasts_s:  # guard: another's Lease lasts
                return False
        try:
            await self._api.set_lease(self._config.name, self.holder, self._config.lasts_s, found)
        except ConflictError:
            return False
        self._until_s = began_s + self._config.held_s
        return True
