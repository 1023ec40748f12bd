"""Posts whose pages are still being computed, over every transport between pools of devices."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
import pytest

from tests.kvtransfer.device_pair import (
    D_EPOCH,
    P_EPOCH,
    DevicePair,
    Ear,
    device_pair,
    take_small_slots,
    wait_until,
)
from tests.kvtransfer.nixl_marks import over_nixl
from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.device import DeviceError, Mark
from twolane.kvtransfer.digests import mix64
from twolane.kvtransfer.layouts.sources import MadePages
from twolane.kvtransfer.testing.device import DoubleCopyStream, DoubleMemory
from twolane.kvtransfer.transport import Checked
from twolane.kvtransfer.transports.registry import OutletOpener, TransportConfig, open_landings
from twolane.layout import parse_layout
from twolane.v1 import transfer_pb2

SENT = list(range(20))  # several slots or slices of two pages


class AskedMark(threading.Event):
    """Knows when the device has come to it."""

    def __init__(self) -> None:
        super().__init__()
        self.was_asked = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.was_asked.set()
        return super().wait(timeout)


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    take_small_slots(monkeypatch)


@pytest.fixture(params=["cuda_ipc", "shm", "unix", "tcp", over_nixl()])
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def pair(transport: str) -> Iterator[DevicePair]:
    with device_pair(transport) as made:
        yield made


@pytest.fixture
def marks() -> Iterator[list[AskedMark]]:
    """Passed at the end, whatever the test has found: else no end could be closed."""
    events = [AskedMark(), AskedMark()]
    yield events
    for event in events:
        event.set()


@pytest.fixture
def mark(marks: list[AskedMark]) -> AskedMark:
    return marks[0]


def is_untouched(pair: DevicePair) -> bool:
    return not pair.d.pages.any()


def landed(pair: DevicePair, n: int) -> Checked:
    """The first n pages of grant 1 are there."""
    pair.landing.check(1, 0, n)
    (checked,) = pair.into.wait_for(1)
    assert isinstance(checked, Checked)
    return checked


def test_nothing_moves_before_the_mark_and_everything_as_it_is_then(
    pair: DevicePair, mark: AskedMark
) -> None:
    pair.grant(1, *SENT)
    pair.post(1, 1, SENT, SENT, after=mark)
    assert mark.was_asked.wait(30.0)
    assert pair.out.hears_nothing(0.2)
    assert is_untouched(pair)
    pair.p.pages[:] = np.random.default_rng(8).integers(0, 256, pair.p.pages.shape, np.uint8)
    mark.set()
    (posted,) = pair.out.wait_for(1)
    assert posted.ok
    checked = landed(pair, len(SENT))
    assert pair.has(SENT, SENT)
    sums = mix64(pair.p.pages, np.array(SENT)).tolist()
    assert checked.checksums is not None
    assert posted.checksums.tolist() == checked.checksums.tolist() == sums


def test_posts_wait_for_a_mark_each(pair: DevicePair, marks: list[AskedMark]) -> None:
    mark, second = marks
    pair.grant(1, *range(8))
    pair.post(1, 1, [0, 1, 2, 3], [0, 1, 2, 3], after=mark)
    pair.post(2, 1, [4, 5, 6, 7], [4, 5, 6, 7], first=4, after=second)
    mark.set()
    assert [(p.post, p.ok) for p in pair.out.wait_for(1)] == [(1, True)]
    assert pair.out.hears_nothing()
    assert not pair.d.pages[4:].any()
    second.set()
    assert pair.out.wait_for(2)[1].ok
    landed(pair, 8)
    assert pair.has(list(range(8)), list(range(8)))


def test_posts_before_one_that_waits_go_out_and_those_behind_it_when_it_does(
    pair: DevicePair, mark: threading.Event
) -> None:
    passed = threading.Event()
    passed.set()
    pair.grant(1, *range(5))
    pair.post(1, 1, [0], [0])
    pair.post(2, 1, [1], [1], first=1, after=passed)
    assert {p.post: p.ok for p in pair.out.wait_for(2)} == {1: True, 2: True}
    pair.post(3, 1, [2], [2], first=2, after=mark)
    pair.post(4, 1, [3], [3], first=3)
    pair.post(5, 1, [4], [4], first=4, after=passed)
    time.sleep(0.05)
    mark.set()
    assert {p.post: p.ok for p in pair.out.wait_for(5)} == dict.fromkeys(range(1, 6), True)
    landed(pair, 5)
    assert pair.has(list(range(5)), list(range(5)))


def test_a_post_called_back_before_the_mark_ends_when_its_pages_are_not_read_any_more(
    pair: DevicePair, transport: str, mark: AskedMark
) -> None:
    pair.grant(1, *SENT)
    pair.grant(2, 30)
    pair.post(1, 1, SENT, SENT, after=mark)
    pair.post(2, 2, [9], [30])
    assert mark.was_asked.wait(30.0)
    assert pair.out.hears_nothing()
    pair.outlet.cancel(1)
    if transport == "nixl":  # nothing was given to the device but the question
        assert pair.out.wait_for(1)[0].post == 1
    else:
        assert pair.out.hears_nothing(), "the device reads them as soon as the mark is passed"
    assert is_untouched(pair) or transport == "nixl"  # there the other post may have gone
    mark.set()
    assert {p.post: p.ok for p in pair.out.wait_for(2)} == {1: False, 2: True}
    pair.landing.check(2, 0, 1)
    pair.into.wait_for(1)
    assert pair.has([9], [30])
    assert transport == "cuda_ipc" or not pair.d.pages[SENT].any(), "on their way there already"


def test_a_post_that_was_called_back_has_read_nothing_that_comes_into_its_pages_later(
    pair: DevicePair, mark: threading.Event
) -> None:
    pair.grant(1, *SENT)
    pair.post(1, 1, SENT, SENT, after=mark)
    time.sleep(0.05)
    pair.outlet.cancel(1)
    mark.set()
    assert [p.ok for p in pair.out.wait_for(1)] == [False]
    before = pair.d.pages.copy()
    pair.p.pages[:] = 0xEE  # another row's now
    time.sleep(0.1)
    assert (pair.d.pages == before).all()
    assert not (pair.d.pages == 0xEE).all(axis=1).any()


def test_closing_waits_for_the_mark_and_no_longer(pair: DevicePair, mark: AskedMark) -> None:
    pair.grant(1, *SENT)
    pair.post(1, 1, SENT, SENT, after=mark)
    pair.post(2, 1, [0], [40], after=mark)
    assert mark.was_asked.wait(30.0)
    assert pair.out.hears_nothing()
    closing_thread = threading.Thread(target=pair.outlet.close, daemon=True)
    closing_thread.start()
    wait_until(lambda: pair.outlet._is_closing)  # type: ignore[attr-defined]
    closing_thread.join(0.1)
    assert closing_thread.is_alive(), "what the device was given it still does"
    mark.set()
    closing_thread.join(30)
    assert not closing_thread.is_alive()
    assert sorted(p.post for p in pair.outlet.poll()) == [1, 2]
    before = pair.d.pages.copy()
    time.sleep(0.05)
    assert (pair.d.pages == before).all()


def test_a_mark_that_the_device_refuses_fails_its_post_and_the_next_ones_work(
    pair: DevicePair, mark: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: DoubleCopyStream, mark: Mark) -> None:
        raise DeviceError("no such mark")

    with monkeypatch.context() as refusing:
        refusing.setattr(DoubleCopyStream, "after", refuse)
        pair.grant(1, 0, 1)
        pair.post(1, 1, [0], [0], after=mark)
        assert [(p.post, p.ok) for p in pair.out.wait_for(1)] == [(1, False)]
        assert is_untouched(pair)
    mark.set()
    pair.post(2, 1, [0, 1], [0, 1], after=mark)
    assert pair.out.wait_for(2)[1].ok
    landed(pair, 2)
    assert pair.has([0, 1], [0, 1])


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_each_socket_waits_for_the_marks_of_its_own_posts(kind: str, mark: threading.Event) -> None:
    with ExitStack() as stack:
        pair = stack.enter_context(device_pair(kind, sockets=3))
        stack.callback(mark.set)
        pair.grant(1, *range(6))
        pair.post(0, 1, [0], [0], after=mark)
        pair.post(1, 1, [1], [1], first=1)
        pair.post(2, 1, [2], [2], first=2, after=mark)
        assert [(p.post, p.ok) for p in pair.out.wait_for(1)] == [(1, True)]
        assert pair.out.hears_nothing()
        mark.set()
        assert {p.post for p in pair.out.wait_for(3)} == {0, 1, 2}
        landed(pair, 3)
        assert pair.has([0, 1, 2], [0, 1, 2])


OURS, THEIRS = (
    f'{{"dtype":"bfloat16","page_tokens":{tokens},"layers":2,"kv_heads":2,"head_dim":64}}'
    for tokens in (16, 64)
)


@pytest.mark.parametrize("name", ["cuda_ipc", "shm", "tcp"])
def test_pages_are_made_of_what_the_device_has_computed(name: str, mark: threading.Event) -> None:
    config = TransportConfig(transports=(name,), checksums=True)
    source, target = parse_layout(OURS), parse_layout(THEIRS)
    with ExitStack() as stack:
        p = stack.enter_context(closing(DoubleMemory(16, source.page_bytes)))
        d = stack.enter_context(closing(DoubleMemory(4, target.page_bytes)))
        landing = stack.enter_context(closing(open_landings(D_EPOCH, d, config)[name]))
        hello = transfer_pb2.ReceiverHello(
            epoch=D_EPOCH, layout=THEIRS, transport=name, transport_address=landing.address,
            checksums=landing.digests,
        )  # fmt: skip
        outlet = stack.enter_context(closing(OutletOpener(P_EPOCH, p, config, OURS)(hello)))
        stack.callback(mark.set)  # an outlet's end waits for it
        sent, into = Ear(outlet), Ear(landing)
        landing.grant(P_EPOCH, 1, np.arange(4))
        src = np.random.default_rng(0).permutation(16).reshape(4, 4)
        outlet.post(1, 1, CopyPlan(0, src, np.arange(4), after=mark))
        assert sent.hears_nothing()
        p.pages[:] = np.random.default_rng(1).integers(0, 256, p.pages.shape, np.uint8)
        mark.set()
        assert sent.wait_for(1)[0].ok
        landing.check(1, 0, 4)
        (checked,) = into.wait_for(1)
        made, ids = MadePages(p.pages, source, target, None).take(src)
        assert (d.pages == made[ids]).all()
        assert checked.checksums.tolist() == sent.news[0].checksums.tolist()
