"""Outlets tell of a post that gets on before it is over: a slow link is not a stuck one."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.layouts.sources import WholePages
from twolane.kvtransfer.transports.common.addresses import listen_tcp, listen_unix
from twolane.kvtransfer.transports.common.striped_outlet import Bundle
from twolane.kvtransfer.transports.stream.outlet import StreamOutlet
from twolane.kvtransfer.transports.stream.source import HostSource

SIZE, N = 1 << 20, 64  # more than sockets hold


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_bytes_that_a_slow_receiver_took_count_though_the_post_is_under_way(kind: str) -> None:
    listener, address = listen_unix() if kind == "unix" else listen_tcp("127.0.0.1", "")
    pool: Any = np.zeros((N, SIZE), dtype=np.uint8)
    source = HostSource(WholePages(pool), "xxh3")
    outlet = Bundle([StreamOutlet(kind, address, 1, 2, source, digest="xxh3")])
    pages = np.arange(N, dtype=np.int64)
    outlet.post(1, 1, CopyPlan(0, pages, pages))
    listener.setblocking(True)
    listener.settimeout(30.0)
    peer, _ = listener.accept()
    seen = [0]
    with listener, peer:
        for _ in range(3):
            deadline = time.monotonic() + 30.0
            while outlet.n_moved <= seen[-1]:
                assert time.monotonic() < deadline, f"nothing moved after {seen}"
                peer.recv(SIZE)
            seen.append(outlet.n_moved)
        assert not outlet.poll()
        outlet.cancel(1)
    outlet.close()
