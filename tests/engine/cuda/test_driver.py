"""Copies by the copy engines, on a driver whose streams go on in the order that a test picks."""

from __future__ import annotations

import ctypes
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from twolane.engine.cuda import driver
from twolane.engine.cuda.driver import Copies, CudaError, Event

MAIN, SIDES = 11, [12, 13, 14]
REFUSED, NOT_READY = 1, 600
N, SIZE = 10, 64


class FakeDriver:
    """Keeps what each stream was given, and does it when told to; a wait holds up its stream until
    what was recorded by then is past. From the copy call number `refuses_from` on none is taken."""

    def __init__(self, *, is_old: bool = False, refuses_from: int = 1000) -> None:
        self.queues: dict[int, deque[Callable[[], bool]]] = defaultdict(deque)
        self.copied_on: list[int] = []  # streams, in the order of calls that were taken
        self.n_events = 0
        self.is_broken = False  # work before an event failed
        self._refuses_from = refuses_from
        self._n_calls = 0
        self._records: dict[int, int] = {}  # by event, how often it was recorded
        self._past: set[tuple[int, int]] = set()

        def one(target: int, source: int, n_bytes: int, stream: ctypes.c_void_p) -> int:
            return self._copies([(target, source, n_bytes)], stream)

        def batch(*args: Any) -> int:
            targets, sources, sizes, count, attributes, first, n_attributes, stream = args
            assert (n_attributes.value, first._obj.value) == (1, 0)
            assert attributes._obj.order == 1, "sources are read when the stream is there"
            assert stream.value, "the default stream takes no batches"
            columns = [
                ctypes.cast(column, ctypes.POINTER(ctypes.c_uint64))[: count.value]
                for column in (targets, sources, sizes)
            ]
            return self._copies(list(zip(*columns, strict=True)), stream)

        self.cuMemcpyAsync = one
        if not is_old:
            self.cuMemcpyBatchAsync_v2 = batch

    def on(self, stream: int, work: Callable[[], Any]) -> None:
        def do() -> bool:
            work()
            return True

        self.queues[stream].append(do)

    def run(self, *streams: int) -> None:
        """All that was given; who is named first goes on wherever it can."""
        while any(self.queues.values()):
            assert any(self._run(stream) for stream in streams), "streams wait for each other"

    def _run(self, stream: int) -> bool:
        queue, n = self.queues[stream], 0
        while queue and queue[0]():
            queue.popleft()
            n += 1
        return n > 0

    def _copies(self, copies: list[tuple[int, int, int]], stream: ctypes.c_void_p) -> int:
        self._n_calls += 1
        if self._n_calls > self._refuses_from:
            return REFUSED
        assert stream.value is not None
        for copy in copies:
            self.copied_on.append(stream.value)
            self.on(stream.value, lambda copy=copy: ctypes.memmove(*copy))  # type: ignore[misc]
        return 0

    # -- the names of CUDA's driver ---------------------------------------------------------

    def cuEventCreate(self, event: Any, flags: object) -> int:
        self.n_events += 1
        event._obj.value = 100 + self.n_events
        return 0

    def cuEventDestroy_v2(self, event: object) -> int:
        self.n_events -= 1
        return 0

    def cuEventRecord(self, event: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:
        assert event.value is not None
        assert stream.value is not None
        nth = self._records[event.value] = self._records.get(event.value, 0) + 1
        name = (event.value, nth)
        self.on(stream.value, lambda: self._past.add(name))
        return 0

    def cuEventQuery(self, event: ctypes.c_void_p) -> int:
        assert event.value is not None
        if self.is_broken:
            return REFUSED
        return 0 if (event.value, self._records[event.value]) in self._past else NOT_READY

    def cuStreamWaitEvent(self, stream: Any, event: ctypes.c_void_p, flags: object) -> int:
        assert event.value is not None
        name = (event.value, self._records[event.value])
        self.queues[stream.value].append(lambda: name in self._past)
        return 0


class Scene:
    """The stream fills pages, copies them, and then looks at what came of it."""

    def __init__(self, fake: FakeDriver, *, n: int = N) -> None:
        self.fake = fake
        self.content = np.random.default_rng(0).integers(1, 256, (n, SIZE), np.uint8)
        self.source, self.target = np.zeros((2, n, SIZE), np.uint8)
        self.seen: npt.NDArray[np.uint8] = np.zeros((n, SIZE), np.uint8)
        with mock.patch.object(driver, "_driver", return_value=fake):
            self.copies = Copies(MAIN, SIDES)
        self.order = np.random.default_rng(1).permutation(n)

    def give(self) -> None:
        source, target = self.source.ctypes.data, self.target.ctypes.data
        n = len(self.order)
        self.copies.submit(
            (
                [target + to * SIZE for to in self.order.tolist()],
                [source + i * SIZE for i in range(n)],
                [SIZE] * n,
            )
        )

    def fill(self) -> None:
        self.fake.on(MAIN, lambda: np.copyto(self.source, self.content))

    def look(self) -> None:
        self.fake.on(MAIN, lambda: np.copyto(self.seen, self.target))

    @property
    def is_seen(self) -> bool:
        return bool((self.seen[self.order] == self.content).all())


ORDERS = [(MAIN, *SIDES), (*SIDES, MAIN), (SIDES[1], MAIN, SIDES[2], SIDES[0])]


@pytest.mark.parametrize("is_old", [False, True], ids=["many by a call", "one by one"])
@pytest.mark.parametrize("order", ORDERS)
def test_copies_side_by_side_come_after_what_was_given_before_and_before_what_is_given_next(
    order: tuple[int, ...], is_old: bool
) -> None:
    scene = Scene(FakeDriver(is_old=is_old))
    scene.fill()
    scene.give()
    scene.look()
    scene.fake.run(*order)
    assert scene.is_seen
    assert set(scene.fake.copied_on) == {MAIN, *SIDES}
    counts = [scene.fake.copied_on.count(stream) for stream in (MAIN, *SIDES)]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("order", ORDERS)
def test_a_second_time_does_not_begin_before_the_first_is_over(order: tuple[int, ...]) -> None:
    scene = Scene(FakeDriver())
    for _ in range(2):
        scene.content = scene.content[::-1].copy()
        scene.fake.on(MAIN, lambda now=scene.content: np.copyto(scene.source, now))  # type: ignore[misc]
        scene.give()
    scene.look()
    scene.fake.run(*order)
    assert scene.is_seen


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("is_old", "taken"), [(False, 2), (False, 0), (True, 4)])
def test_copies_before_one_that_is_refused_are_waited_for(
    order: tuple[int, ...], is_old: bool, taken: int
) -> None:
    scene = Scene(FakeDriver(is_old=is_old, refuses_from=taken))
    scene.fill()
    with pytest.raises(CudaError, match="cuMemcpy"):
        scene.give()
    scene.look()
    scene.fake.run(*order)
    assert (scene.target == scene.seen).all(), "a copy came later"
    assert scene.target.any() == bool(taken)


@pytest.mark.parametrize(("n", "n_streams"), [(1, 1), (2, 1), (3, 2), (7, 4), (8, 4)])
def test_a_stream_is_worth_two_copies(n: int, n_streams: int) -> None:
    scene = Scene(FakeDriver(), n=n)
    scene.fill()
    scene.give()
    scene.look()
    scene.fake.run(*SIDES, MAIN)
    assert scene.is_seen
    assert len(set(scene.fake.copied_on)) == n_streams


def test_events_are_given_back_once() -> None:
    scene = Scene(FakeDriver())
    assert scene.fake.n_events == 4
    scene.copies.close()
    scene.copies.close()
    assert scene.fake.n_events == 0


def test_an_event_is_done_when_its_stream_has_come_there_and_given_back_when_nobody_holds_it() -> (
    None
):
    fake = FakeDriver()
    with mock.patch.object(driver, "_driver", return_value=fake):
        event = Event()
    for _ in range(2):
        fake.on(MAIN, lambda: None)
        event.record(MAIN)
        assert not event.is_done()
        fake.run(MAIN)
        assert event.is_done()
    fake.is_broken = True
    with pytest.raises(CudaError, match="cuEventQuery"):
        event.is_done()
    del event
    assert fake.n_events == 0


def test_no_copies_are_no_work() -> None:
    scene = Scene(FakeDriver(), n=0)
    scene.give()
    assert not any(scene.fake.queues.values())


def test_the_default_stream_which_takes_no_batches_is_refused_at_once() -> None:
    with mock.patch.object(driver, "_driver", return_value=FakeDriver()):
        for streams in ((0, []), (MAIN, [0])):
            with pytest.raises(AssertionError, match="default stream"):
                Copies(*streams)
