"""Memory that every rank has on its card, mapped by all others: CUDA IPC between processes.

Each exports one raw allocation and opens those of its peers; what is exchanged is 72 bytes a rank.
The memory lives as long as the process: to free what a peer has mapped would be undefined.
"""

from __future__ import annotations

import ctypes
import logging

import numpy as np
import torch

from engine.cuda.memory import RawMemory
from engine.kernels.rank_sum import MAX_ROWS, PeerBuffers
from engine.ranks.collective import Collective, least

log = logging.getLogger(__name__)

_HANDLE_BYTES = 64
_TOLD_BYTES = _HANDLE_BYTES + 8  # and the offset
_LAZY_PEER_ACCESS = 1


class PeerError(Exception):
    """A card's memory cannot be exported, or not be mapped here."""


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_byte * _HANDLE_BYTES),)


def share_buffers(
    ranks: Collective, *, width: int, dtype: torch.dtype, device: torch.device
) -> PeerBuffers | None:
    """Buffers for sums of rows of that width and dtype. All ranks call this at once.

    None, on every rank, where one of the cards cannot map another's memory.
    """
    n_bytes = PeerBuffers.bytes_for(ranks.ranks, MAX_ROWS, width, dtype.itemsize)
    memory = RawMemory(n_bytes, device)  # zeroed
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    addresses: list[int] = []
    try:
        ours = _export(memory.address)
    except PeerError as error:
        log.warning("%s", error)
        ours = bytes(_TOLD_BYTES)
    told = _exchange(ranks, ours, device)
    try:
        for rank, text in enumerate(told):
            addresses.append(memory.address if rank == ranks.rank else _open(text))
    except PeerError as error:
        log.warning("%s", error)
    if not least(ranks, int(len(addresses) == ranks.ranks), device):
        log.warning("cards cannot reach each other's memory: all sums are taken by the library")
        return None
    return PeerBuffers(
        rank=ranks.rank,
        addresses=torch.tensor(addresses, dtype=torch.int64, device=device),
        counts=torch.zeros(MAX_ROWS, dtype=torch.int32, device=device),
        width=width,
        memory=memory,
    )


def _exchange(ranks: Collective, ours: bytes, device: torch.device) -> list[bytes]:
    held = torch.from_numpy(np.frombuffer(ours, np.uint8).copy()).to(device)
    told: bytes = ranks.all_gather(held).cpu().numpy().tobytes()
    return [told[at : at + len(ours)] for at in range(0, len(told), len(ours))]


def _export(address: int) -> bytes:
    """The handle of the allocation that holds the address, and how far in it lies."""
    driver = _driver()
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    _check(
        driver.cuMemGetAddressRange_v2(
            ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address)
        ),
        "cuMemGetAddressRange",
    )
    handle = _Handle()
    _check(driver.cuIpcGetMemHandle(ctypes.byref(handle), base), "cuIpcGetMemHandle")
    return bytes(handle) + (address - base.value).to_bytes(8, "little")


def _open(text: bytes) -> int:
    """The address here of what a peer exported."""
    handle = _Handle.from_buffer_copy(text[:_HANDLE_BYTES])
    pointer = ctypes.c_uint64()
    _check(
        _driver().cuIpcOpenMemHandle_v2(
            ctypes.byref(pointer), handle, ctypes.c_uint(_LAZY_PEER_ACCESS)
        ),
        "cuIpcOpenMemHandle",
    )
    return pointer.value + int.from_bytes(text[_HANDLE_BYTES:], "little")


def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int, call: str) -> None:
    if status:
        raise PeerError(f"{call}: CUDA error {status}")
