"""Pages of a host's pool made for a receiver of another layout, over each real transport to it."""

from __future__ import annotations

from contextlib import ExitStack, closing

import numpy as np
import pytest

from kvtransfer.plan import CopyPlan
from kvtransfer.planes import Paging
from kvtransfer.sources import MadePages
from kvtransfer.transports.double_device import DeviceFaults, DoubleMemory
from kvtransfer.transports.pool_memory import create_pool_memory
from kvtransfer.transports.registry import AnyPool, OutletOpener, TransportConfig, open_landings
from tests.kvtransfer.device_pair import D_EPOCH, P_EPOCH, Ear
from tests.kvtransfer.nixl_marks import needs_nixl
from twolane.layout import parse_layout
from twolane.v1 import transfer_pb2

OURS, THEIRS = (
    f'{{"dtype":"bfloat16","page_tokens":{tokens},"layers":2,"kv_heads":2,"head_dim":64}}'
    for tokens in (16, 64)
)
SIZE = parse_layout(THEIRS).page_bytes
N_PAGES, N_POSTS = 400, 4  # a post is of several batches, and they are under way at once


@pytest.mark.parametrize(
    ("transport", "on_device"),
    [
        *(("shm", False), ("unix", False), ("tcp", False), ("unix", True), ("tcp", True)),
        *(pytest.param("nixl", on_device, marks=needs_nixl) for on_device in (False, True)),
    ],
)
def test_made_pages_arrive_whole_over_every_transport_and_socket(
    transport: str, on_device: bool
) -> None:
    source, target = parse_layout(OURS), parse_layout(THEIRS)
    rng = np.random.default_rng(3)
    pool = rng.integers(0, 256, (4 * N_PAGES, source.page_bytes), np.uint8)
    row = rng.permutation(4 * N_PAGES).tolist()
    src = Paging(16, 64, SIZE).sources(row, 0, N_PAGES, 64 * N_PAGES - 5)
    assert src.ndim == 2
    alone = MadePages(pool, source, target)
    assert alone.batch_pages < N_PAGES // N_POSTS
    expected = []
    for at in range(N_PAGES):  # one at a time, from a memory that nobody shares
        made, (page,) = alone.take(src[at : at + 1])
        expected.append(made[page].copy())

    config = TransportConfig(transports=(transport,), sockets=2)
    with ExitStack() as stack:
        memory = create_pool_memory(N_PAGES * SIZE, "x")
        into: AnyPool = memory.array.reshape(N_PAGES, SIZE)
        arrived = memory.array.reshape(N_PAGES, SIZE)
        if on_device:
            device = stack.enter_context(
                closing(DoubleMemory(N_PAGES, SIZE, faults=DeviceFaults()))
            )
            into, arrived = device, device.pages
        landing = open_landings(D_EPOCH, into, config, memory)[transport]
        stack.enter_context(closing(landing))
        opener = OutletOpener(P_EPOCH, pool, config, OURS, {})
        hello = transfer_pb2.ReceiverHello(
            epoch=D_EPOCH,
            layout=THEIRS,
            transport=transport,
            transport_address=landing.address,
            checksums=landing.digests,
        )
        outlet = stack.enter_context(closing(opener(hello)))
        dst = rng.permutation(N_PAGES)
        landing.grant(P_EPOCH, 1, dst)
        sent, come = Ear(outlet), Ear(landing)
        each = N_PAGES // N_POSTS
        for post in range(N_POSTS):
            span = slice(post * each, (post + 1) * each)
            outlet.post(post, 1, CopyPlan(span.start, src[span], dst[span]))
        posted = {p.post: p for p in sent.wait_for(N_POSTS)}
        assert all(p.ok for p in posted.values())
        landing.check(1, 0, N_PAGES)
        (checked,) = come.wait_for(1)
        sums = np.concatenate([posted[post].checksums for post in range(N_POSTS)])
        assert (arrived[dst] == np.array(expected)).all()
        assert checked.checksums.tolist() == sums.tolist()


def test_pages_of_a_device_are_made_for_nobody() -> None:
    with closing(DoubleMemory(4, SIZE, faults=DeviceFaults())) as device:
        opener = OutletOpener(P_EPOCH, device, TransportConfig(), OURS, {})
        assert opener.makes_dtypes == ()
        assert opener.memory == device.kind
