"""What a card refuses is a `DeviceError`, whoever says so: the driver, or torch. Without a card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("triton")

import torch

from tests.worker.cardless import without_card
from tests.worker.cuda.test_copy_stream import KERNEL, Pool, of_ranks
from twolane.engine.cuda.driver import CudaError
from twolane.kvtransfer.device import DeviceError
from twolane.worker.cuda.copy_stream import CudaCopyStream

REFUSED = CudaError("cuCtxSetCurrent: CUDA error 2")
NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory")
PAGES = np.array([1, 2])


@pytest.fixture(autouse=True)
def cardless() -> Iterator[None]:
    with without_card():
        yield


@pytest.fixture
def pool() -> Pool:
    return Pool(of_ranks(1), 1, KERNEL)


@pytest.fixture
def lane(pool: Pool) -> CudaCopyStream:
    return pool.memory.open_copy_stream()


def refuse(name: str, error: Exception) -> Any:
    return mock.patch(name, side_effect=error)


@pytest.mark.parametrize("name", ["twolane.worker.cuda.copy_stream.Copies", "torch.cuda.Stream"])
@pytest.mark.parametrize("error", [REFUSED, NO_MEMORY])
def test_a_lane_that_cannot_be_had(pool: Pool, name: str, error: Exception) -> None:
    with refuse(name, error), pytest.raises(DeviceError):
        pool.memory.open_copy_stream()


def test_a_thread_that_is_not_let_into_the_context_asks_again(
    pool: Pool, lane: CudaCopyStream
) -> None:
    buffer = np.zeros((2, pool.memory.page_bytes), np.uint8)
    with mock.patch.object(lane._context, "enter", side_effect=REFUSED):
        for _ in range(2):
            with pytest.raises(DeviceError, match="error 2"):
                lane.to_host(PAGES, buffer)
    with mock.patch.object(lane._context, "enter") as enter:
        lane.to_host(PAGES, buffer)
    enter.assert_called_once_with()


def test_no_room_for_sums(lane: CudaCopyStream) -> None:
    with (
        refuse("twolane.worker.cuda.copy_stream.pinned_result", NO_MEMORY),
        pytest.raises(DeviceError),
    ):
        lane.sum(PAGES)


def test_no_room_for_what_pages_are_made_by(pool: Pool) -> None:
    with (
        refuse("twolane.worker.cuda.page_converter.table_of", NO_MEMORY),
        pytest.raises(DeviceError),
    ):
        pool.memory.made(of_ranks(1), of_ranks(1, page_tokens=16))


@pytest.mark.parametrize("error", [REFUSED, NO_MEMORY])
def test_a_fence_that_cannot_be_had_is_waited_for_and_tells_of_it(
    lane: CudaCopyStream, error: Exception
) -> None:
    waits: Any = lane._stream.synchronize
    waits.reset_mock()
    with refuse("twolane.worker.cuda.copy_stream.Event", error):
        fence = lane.mark()
    waits.assert_called_once_with()
    with pytest.raises(DeviceError, match="could not be followed"):
        fence.is_done()


@pytest.mark.parametrize("error", [REFUSED, NO_MEMORY])
def test_a_lane_of_a_broken_card_closes(lane: CudaCopyStream, error: Exception) -> None:
    with mock.patch.object(lane._stream, "synchronize", side_effect=error):
        lane.close()
        lane.close()


def test_a_peer_that_cannot_be_unmapped(pool: Pool) -> None:
    other = Pool(of_ranks(1), 2, KERNEL, is_far=True)
    peer = pool.memory.open_peer(other.memory.export().replace('"ticks": ', '"ticks": 1'))
    with refuse("twolane.worker.cuda.peer.close_memory", REFUSED), pytest.raises(DeviceError):
        peer.close()
