"""Pages made for a receiver of another layout, over each real transport to it."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from tests.kvtransfer.device_pair import D_EPOCH, P_EPOCH, Ear, is_given, wait_until
from tests.kvtransfer.nixl_marks import needs_nixl
from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.layouts.gather import Paging
from twolane.kvtransfer.layouts.sources import Convert, MadePages
from twolane.kvtransfer.testing.device import DoubleMemory
from twolane.kvtransfer.transports.common.shared_memory import create_pool_memory
from twolane.kvtransfer.transports.registry import (
    AnyPool,
    OutletOpener,
    TransportConfig,
    open_landings,
)
from twolane.layout import Layout, parse_layout
from twolane.v1 import transfer_pb2

OURS, THEIRS = (
    f'{{"dtype":"bfloat16","page_tokens":{tokens},"layers":2,"kv_heads":2,"head_dim":64}}'
    for tokens in (16, 64)
)
SMALL = THEIRS.replace("bfloat16", "float8_e4m3fn")
SIZE, OUR_SIZE = parse_layout(THEIRS).page_bytes, parse_layout(OURS).page_bytes
N_PAGES, N_POSTS = 400, 4  # a post is of several batches, and they are under way at once


def crumble(pages: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8], *, page_bytes: int) -> None:
    """Stands in for what makes FP8 of wide pages: a byte of each two."""
    out[:] = pages[:, ::2][:, np.arange(page_bytes) % (pages.shape[1] // 2)]


def to_small(source: Layout, target: Layout) -> Convert:
    return partial(crumble, page_bytes=target.page_bytes)


@pytest.mark.parametrize(
    ("transport", "sender", "receiver"),
    [
        ("shm", "host", "host"),
        ("unix", "host", "host"),
        ("tcp", "host", "host"),
        ("unix", "host", "device"),
        ("tcp", "host", "device"),
        ("cuda_ipc", "device", "device"),
        ("shm", "device", "device"),
        ("unix", "device", "device"),
        ("tcp", "device", "device"),
        ("unix", "device", "host"),
        pytest.param("nixl", "host", "host", marks=needs_nixl),
        pytest.param("nixl", "host", "device", marks=needs_nixl),
    ],
)
@pytest.mark.parametrize("theirs", [THEIRS, SMALL])
def test_made_pages_arrive_whole_over_every_transport_and_socket(
    transport: str, sender: str, receiver: str, theirs: str
) -> None:
    source, target = parse_layout(OURS), parse_layout(theirs)
    size = target.page_bytes
    converts = {"float8_e4m3fn": to_small}
    rng = np.random.default_rng(3)
    content = rng.integers(0, 256, (4 * N_PAGES, source.page_bytes), np.uint8)
    row = rng.permutation(4 * N_PAGES).tolist()
    src = Paging(16, 64, size).sources(row, 0, N_PAGES, 64 * N_PAGES - 5)
    assert src.ndim == 2
    make = None if theirs == THEIRS else to_small
    alone = MadePages(content, source, target, make)
    assert alone.batch_pages < N_PAGES // N_POSTS
    expected = []
    for at in range(N_PAGES):  # one at a time, from a memory that nobody shares
        made, (page,) = alone.take(src[at : at + 1])
        expected.append(made[page].copy())

    config = TransportConfig(transports=(transport,), sockets=2, checksums=True)
    with ExitStack() as stack:
        pool: AnyPool = content
        if sender == "device":
            pool = stack.enter_context(
                closing(DoubleMemory(4 * N_PAGES, OUR_SIZE, converts=converts))
            )
            pool.pages[:] = content
        memory = create_pool_memory(N_PAGES * size, "x")
        into: AnyPool = memory.array.reshape(N_PAGES, size)
        arrived = memory.array.reshape(N_PAGES, size)
        if receiver == "device":
            device = stack.enter_context(closing(DoubleMemory(N_PAGES, size)))
            into, arrived = device, device.pages
        landing = open_landings(D_EPOCH, into, config, memory)[transport]
        stack.enter_context(closing(landing))
        opener = OutletOpener(P_EPOCH, pool, config, OURS, converts)
        assert opener.makes_dtypes == ("bfloat16", "float8_e4m3fn")
        hello = transfer_pb2.ReceiverHello(
            epoch=D_EPOCH,
            layout=theirs,
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


@pytest.mark.parametrize("transport", ["cuda_ipc", "unix"])
def test_made_pages_of_a_device_are_still_read_while_a_post_is_cancelled(transport: str) -> None:
    config = TransportConfig(transports=(transport,), checksums=True)
    with ExitStack() as stack:
        p = stack.enter_context(closing(DoubleMemory(8, OUR_SIZE)))
        d = stack.enter_context(closing(DoubleMemory(8, SIZE)))
        p.pages[:] = 1
        landing = stack.enter_context(closing(open_landings(D_EPOCH, d, config)[transport]))
        hello = transfer_pb2.ReceiverHello(
            epoch=D_EPOCH, layout=THEIRS, transport=transport,
            transport_address=landing.address, checksums=landing.digests,
        )  # fmt: skip
        outlet = stack.enter_context(closing(OutletOpener(P_EPOCH, p, config, OURS)(hello)))
        landing.grant(P_EPOCH, 1, np.arange(2))
        sent = Ear(outlet)
        p.stall()
        src = np.arange(8, dtype=np.int64).reshape(2, 4)
        outlet.post(1, 1, CopyPlan(0, src, np.arange(2)))
        wait_until(lambda: is_given(p))
        assert sent.hears_nothing()
        outlet.cancel(1)
        assert sent.hears_nothing(), "the device may still read its pages"
        p.resume()
        assert [posted.ok for posted in sent.wait_for(1)] == [False]


def test_a_device_without_a_layout_makes_nothing() -> None:
    with closing(DoubleMemory(4, SIZE)) as device:
        assert OutletOpener(P_EPOCH, device, TransportConfig()).makes_dtypes == ()
        assert OutletOpener(P_EPOCH, device, TransportConfig(), OURS).makes_dtypes == ("bfloat16",)
