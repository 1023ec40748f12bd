"""One server for all tests of a process, emptied for each; stores of several routers on it."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.redis_servers import RedisServer, redis_server
from twolane.router.shared.address import parse_address
from twolane.router.shared.config import StoreConfig
from twolane.router.shared.redis_store import RedisStore

MakeStore = Callable[..., Any]


@pytest.fixture(scope="session")
def server_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(server_of_session: RedisServer) -> RedisServer:
    server_of_session.command("FLUSHALL")
    return server_of_session


def patient(url: str, **said: Any) -> StoreConfig:
    """Answers may take long on a busy machine; what is repeated is repeated often."""
    usual = {"ask_s": 30.0, "socket_s": 30.0, "here_s": 0.05, "keep_s": 0.05}
    return StoreConfig(address=parse_address(url), **{**usual, **said})


@pytest.fixture
async def store_of() -> AsyncIterator[MakeStore]:
    """Makes the store of a router, by its id, at a URL."""
    async with AsyncExitStack() as stack:

        async def make(router_id: str, url: str, **said: Any) -> RedisStore:
            store = RedisStore(patient(url, **said), router_id, epoch=7)
            return await stack.enter_async_context(store)

        yield make
