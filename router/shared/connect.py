"""A client of the store's server. It tries once, with a short timeout, because its callers must not
wait long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from twolane.router.shared.address import StoreAddress
from twolane.router.shared.config import SOCKET_S


class StoreClient:
    """An async context manager around the connections. They are opened when needed, through the
    sentinels if there are any."""

    def __init__(self, address: StoreAddress, name: str, socket_s: float = SOCKET_S) -> None:
        """`name` is shown in the server's list of clients."""
        # A cancellation that comes together with a timeout may be lost, so loops check this, too.
        self.is_closing = False
        self._sentinel: Sentinel | None = None
        options = _options(address, socket_s)
        login = {"username": address.username or None, "password": address.password or None}
        own: dict[str, Any] = {
            **options,
            **login,
            "db": address.db,
            "client_name": name,
            "protocol": 3,
            "retry": Retry(NoBackoff(), 0),
            "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        }
        if not address.service:
            host, port = address.hosts[0]
            kind = SSLConnection if address.has_tls else Connection
            pool = ConnectionPool(connection_class=kind, host=host, port=port, **own)
            self.redis: Redis = Redis.from_pool(pool)
            return
        theirs = {
            **options,
            "username": address.sentinel_username or None,
            "password": address.sentinel_password or None,
            "ssl": address.has_tls,
            "retry": Retry(NoBackoff(), 0),
        }
        self._sentinel = Sentinel(  # type: ignore[no-untyped-call]
            address.hosts, sentinel_kwargs=theirs
        )
        self.redis = self._sentinel.master_for(address.service, ssl=address.has_tls, **own)

    async def run(self, command: Sequence[Any]) -> Any:
        """Run a command and return its answer. Raises `RedisError` and OSError."""
        return await self.redis.execute_command(*command)  # type: ignore[no-untyped-call]

    async def run_all(self, batch: Iterable[Sequence[Any]]) -> None:
        """Run commands in one pipeline, without a transaction. Raises the first error."""
        pipe = self.redis.pipeline(transaction=False)
        for command in batch:
            pipe.execute_command(*command)
        await pipe.execute()

    async def __aenter__(self) -> StoreClient:
        return self

    async def __aexit__(self, *thrown: object) -> None:
        await self.redis.aclose()
        if self._sentinel is not None:
            await self._sentinel.aclose()


def _options(address: StoreAddress, socket_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {"socket_timeout": socket_s, "socket_connect_timeout": socket_s}
    if address.has_tls:
        options |= {
            "ssl_ca_certs": address.ca or None,
            "ssl_certfile": address.cert or None,
            "ssl_keyfile": address.key or None,
        }
    return options
