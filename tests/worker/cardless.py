"""A card's memory without a card: kernels are interpreted, streams do everything at once, and a
process "exports" its memory by a number. What is left of `worker.cuda_*` is as it is on a card.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

from twolane.engine.cuda.driver import CopyCommands

CPU = torch.device("cpu")


class _Context:
    uuid = "cardless"

    def __init__(self, device: int) -> None:
        self.device = device

    def enter(self) -> None:
        """One is as good as another."""

    def reach(self, uuid: str) -> None:
        assert uuid == self.uuid


class _Copies:
    def __init__(self, stream: object, side_streams: object) -> None:
        """Everything is done at once, in order."""

    def submit(self, copies: CopyCommands) -> None:
        for copy in zip(*copies, strict=True):
            ctypes.memmove(*copy)

    def close(self) -> None:
        """Nothing is held."""


def _upload(pages: Any, device: object) -> torch.Tensor:
    return torch.from_numpy(pages.astype(np.int32))


@contextmanager
def without_card() -> Iterator[dict[int, int]]:
    """Yields address -> how often it is mapped, of memory of other processes."""
    mapped: dict[int, int] = {}

    def open_memory(exported: bytes) -> int:
        address = int.from_bytes(exported, "little")
        if not address:
            from twolane.engine.cuda.driver import CudaError

            raise CudaError("cuIpcOpenMemHandle: CUDA error 1")
        mapped[address] = mapped.get(address, 0) + 1
        return address

    def close_memory(exported: bytes, address: int) -> None:
        mapped[address] -= 1

    instead: dict[str, Any] = {
        "twolane.worker.cuda.memory.Context": _Context,
        "twolane.worker.cuda.memory.torch": SimpleNamespace(device=lambda *_: CPU),
        "twolane.worker.cuda.memory.export_memory": lambda address: address.to_bytes(8, "little"),
        "twolane.worker.cuda.memory.pin": lambda *_: None,
        "twolane.worker.cuda.memory.unpin": lambda *_: None,
        "twolane.worker.cuda.peer.open_memory": open_memory,
        "twolane.worker.cuda.peer.close_memory": close_memory,
        "twolane.worker.cuda.copy_stream.Copies": _Copies,
        "twolane.worker.cuda.copy_stream.upload": _upload,
        "twolane.worker.cuda.page_converter.upload": _upload,
        "twolane.worker.cuda.copy_stream.pinned_result": lambda n: torch.empty(
            n, dtype=torch.int64
        ),
        "torch.cuda.Stream": mock.Mock(),
        "twolane.worker.cuda.copy_stream.Event": mock.Mock(),
        "torch.cuda.stream": lambda _: nullcontext(),
    }
    with ExitStack() as stack:
        for name, double in instead.items():
            stack.enter_context(mock.patch(name, double))
        yield mapped
