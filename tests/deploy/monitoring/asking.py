"""Clients that keep a cluster busy."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from twolane.errors import InvalidRequestError
from twolane.testing import LocalCluster

_N_CLIENTS = 3
_PAUSE_S = 0.2
_REFUSED = 6


@contextmanager
def asking(cluster: LocalCluster) -> Iterator[None]:
    """Until the block ends, clients get answers; one request in `_REFUSED` is refused."""
    ended = threading.Event()

    def ask() -> None:
        with cluster.client() as client:
            for number in itertools.count(1):
                if ended.wait(_PAUSE_S):
                    return
                if number % _REFUSED:
                    client.generate(token_ids=list(range(1, 80)), max_tokens=500)
                else:
                    with pytest.raises(InvalidRequestError):
                        client.generate(token_ids=[1], max_tokens=10_000_000)

    clients = [threading.Thread(target=ask) for _ in range(_N_CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        ended.set()
        for client in clients:
            client.join()
