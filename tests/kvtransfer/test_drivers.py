"""Both drivers over links in memory, under virtual time."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from typing import Any

import numpy as np
import pytest
import torch

from tests.kvtransfer.two_drivers import D_EPOCH, LAYOUT, PAGE_BYTES, Two, play
from twolane.deploy.process.page_converters import page_converters_of
from twolane.kvtransfer.events import Committed, Dead, Failed, Released
from twolane.kvtransfer.link.process_identity import start_ticks
from twolane.layout import Layout, parse_layout
from twolane.rpc.link import LinkBrokenError
from twolane.v1 import transfer_pb2


def test_row_moves_within_milliseconds_without_waiting_for_a_tick() -> None:
    async def scene(two: Two) -> None:
        key = two.move("r")
        await asyncio.sleep(0.02)
        assert two.p_events == [Committed(key, 2, 2 * PAGE_BYTES), Released(key)]
        assert [how.transport for how in two.p_driver.transports] == ["memory"]
        assert [how.worker_id for how in two.d_driver.transports] == ["p"]
        assert two.n_dials == 1

    two = play(scene)
    assert (two.d_pool[list(two.d_events[0].pages)] == 5).all()


def test_cut_link_is_dialled_again_and_transfers_go_on() -> None:
    async def scene(two: Two) -> None:
        two.move("a")
        await asyncio.sleep(0.0015)
        two.links[0].break_now("cut")
        await asyncio.sleep(1.0)
        assert two.n_dials == 2
        assert [type(event) for event in two.p_events] == [Committed, Released]
        two.move("b")
        await asyncio.sleep(0.05)
        assert len(two.p_events) == 4

    play(scene)


def test_receiver_that_cannot_be_reached_fails_the_transfer_after_one_lease() -> None:
    async def scene(two: Two) -> None:
        two.is_reachable = False
        key = two.move("r")
        await asyncio.sleep(5.5)
        assert two.p_events == []
        await asyncio.sleep(1.0)
        assert two.p_events == [Failed(key, "lease"), Released(key)]
        n_dials = two.n_dials
        assert 6 <= n_dials <= 12, "with growing pauses"
        await asyncio.sleep(20.0)
        assert two.n_dials <= n_dials + 7, "nobody waits for it any more"

    two = play(scene)
    assert two.p_pages.counts().free == 8


@pytest.mark.parametrize("field", ["page_tokens", "head_dim"])
def test_pair_with_unequal_layouts_fails_at_once_naming_the_field(field: str) -> None:
    async def scene(two: Two) -> None:
        key = two.move("r")
        await asyncio.sleep(0.1)
        assert two.p_events == [Failed(key, f"layout.{field}"), Released(key)]
        await asyncio.sleep(30.0)
        assert two.n_dials == 1, "there is no use in asking again"

    play(scene, layout=LAYOUT.replace(f'"{field}":1', f'"{field}":3'))


@pytest.mark.parametrize("page_tokens", [16, 64, 128])
def test_wide_pages_arrive_as_fp8_of_the_receivers_page_size(page_tokens: int) -> None:
    facts = {"dtype": "bfloat16", "page_tokens": 32, "layers": 2, "kv_heads": 2, "head_dim": 16}
    p_layout = json.dumps(facts)
    d_layout = json.dumps({**facts, "dtype": "float8_e4m3fn", "page_tokens": page_tokens})
    rng = np.random.default_rng(3)
    sides = {"layout": d_layout, "p_layout": p_layout, "converts": page_converters_of(p_layout)}

    async def scene(two: Two) -> None:
        two.move("r", n_pages=3)
        values = rng.normal(size=two.p_pool.size // 2).astype(np.float32)
        bits = values.view(np.uint32) >> 16  # bfloat16 by truncation
        two.p_pool[:] = bits.astype(np.uint16).view(np.uint8).reshape(two.p_pool.shape)
        await asyncio.sleep(0.1)
        n_pages = -(-96 // page_tokens)
        n_bytes = n_pages * parse_layout(d_layout).page_bytes
        assert two.p_events[0] == Committed(two.p_events[0].key, n_pages, n_bytes)

    two = play(scene, **sides)
    source = as_tokens(two.p_pool[[0, 1, 2]], parse_layout(p_layout))
    read = as_tokens(two.d_pool[list(two.d_events[0].pages)], parse_layout(d_layout))
    largest = np.abs(source).max(axis=-1, keepdims=True)
    assert (np.abs(read[:96] - source) <= largest / 27).all(), "half a step of e4m3 at its largest"
    assert (read[96:] == 0).all()


def as_tokens(pages: Any, side: Layout) -> Any:
    """[tokens, layers, 2, heads, head_dim] of float32."""
    shape = (len(pages), side.layers, 2, side.kv_heads)
    n = side.page_tokens * side.head_dim
    planes = pages.reshape(*shape, side.plane_bytes)
    if side.dtype == "bfloat16":
        bits = planes.copy().view(np.uint16).astype(np.uint32) << 16
        values = bits.view(np.float32).reshape(*shape, side.page_tokens, side.head_dim)
    else:
        held = torch.from_numpy(planes[..., :n].copy()).view(torch.float8_e4m3fn).float().numpy()
        keys = held[:, :, 0].reshape(*shape[:2], shape[3], side.page_tokens, side.head_dim)
        turned = held[:, :, 1].reshape(*shape[:2], shape[3], side.head_dim, side.page_tokens)
        values = np.stack([keys, turned.swapaxes(-1, -2)], axis=2)
        values = values * planes[..., n:].copy().view(np.float32)[..., None]
    return np.moveaxis(values, 4, 1).reshape(-1, side.layers, 2, side.kv_heads, side.head_dim)


def test_another_incarnation_at_the_address_is_left_alone() -> None:
    async def scene(two: Two) -> None:
        key = two.move("r")
        await asyncio.sleep(8.0)
        assert two.p_events == [Failed(key, "epoch"), Released(key)]
        assert two.n_dials == 1

    two = play(scene, d_epoch=D_EPOCH + 1)
    assert not two.receiver.dropped


def test_sender_that_vanishes_is_judged_within_two_seconds() -> None:
    async def scene(two: Two) -> None:
        await asyncio.sleep(1.0)
        key = two.move("r")
        await asyncio.sleep(0.0018)  # granted; nothing sent
        two.is_reachable = False
        two.links[0].break_now("killed")
        await asyncio.sleep(1.5)
        assert two.d_events == [Dead(key, "judged")]
        await asyncio.sleep(0.5)
        assert two.d_pages.counts().free == 8

    play(scene)


def test_link_that_does_not_begin_with_a_hello_is_closed() -> None:
    async def scene(two: Two) -> None:
        link = await two.dial("there")
        link.send(transfer_pb2.ConnectRequest(renew=transfer_pb2.Renew()))
        with pytest.raises(LinkBrokenError):
            await link.receive()

    play(scene)


def test_transports_are_those_of_open_links() -> None:
    async def scene(two: Two) -> None:
        two.move("r")
        await asyncio.sleep(0.1)
        assert [how.transport for how in two.p_driver.transports] == ["memory"]
        assert [how.worker_id for how in two.d_driver.transports] == ["p"]
        two.is_reachable = False
        two.links[0].break_now("gone")
        await asyncio.sleep(0.1)
        assert two.p_driver.transports == two.d_driver.transports == []

    play(scene)


def test_pages_go_by_the_next_transport_when_the_best_does_not_work_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(two: Two) -> None:
        two.broken = {"cuda_ipc"}
        first = two.move("a")
        await asyncio.sleep(0.3)
        (how,) = two.p_driver.transports
        assert (how.transport, how.instead_of) == ("shm", "cuda_ipc: cuda_ipc is broken")
        assert [how.transport for how in two.d_driver.transports] == ["shm"]
        two.links[-1].break_now("for a moment")
        second = two.move("b")
        await asyncio.sleep(1.0)
        committed = [e.key for e in two.p_events if isinstance(e, Committed)]
        assert committed == [first, second]

    play(scene, transports=("cuda_ipc", "shm"))
    told = [record for record in caplog.records if "do not travel by" in record.message]
    assert len(told) == 1
    assert "next: shm" in told[0].message


def test_a_pinned_transport_that_does_not_work_fails_the_transfer_and_says_why() -> None:
    async def scene(two: Two) -> None:
        two.broken = {"cuda_ipc"}
        key = two.move("a")
        await asyncio.sleep(0.3)
        assert two.p_events[0] == Failed(key, "cuda_ipc: cuda_ipc is broken")
        assert two.p_pages.counts().free == 8

    play(scene, transports=("cuda_ipc",))


def test_receiver_that_refuses_the_model_fails_the_transfer_by_its_word() -> None:
    async def scene(two: Two) -> None:
        two.hello.fingerprint = "of another model"
        key = two.move("r")
        await asyncio.sleep(0.1)
        assert two.p_events == [Failed(key, "fingerprint"), Released(key)]

    play(scene)


def test_sender_that_comes_again_is_watched_once() -> None:
    async def scene(two: Two) -> None:
        two.landing.sender_writes = True
        two.hello.pid, two.hello.pid_start_ticks = os.getpid(), start_ticks(os.getpid())
        two.move("r")
        await asyncio.sleep(0.1)
        (watched,) = two.d_driver._pidfds.values()
        two.links[0].break_now("cut")
        two.move("q")
        await asyncio.sleep(1.0)
        assert len(two.links) == 2
        assert list(two.d_driver._pidfds.values()) == [watched]

    play(scene)


def test_sender_that_cannot_be_watched_for_want_of_a_descriptor_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pidfd_open, n_refused = os.pidfd_open, 0

    def refuse_once(pid: int) -> int:
        nonlocal n_refused
        if not n_refused:
            n_refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return pidfd_open(pid)

    monkeypatch.setattr(os, "pidfd_open", refuse_once)

    async def scene(two: Two) -> None:
        two.landing.sender_writes = True
        two.hello.pid, two.hello.pid_start_ticks = os.getpid(), start_ticks(os.getpid())
        key = two.move("r")
        await asyncio.sleep(1.0)
        assert two.p_events == [Committed(key, 2, 2 * PAGE_BYTES), Released(key)]

    play(scene)
    assert n_refused == 1
