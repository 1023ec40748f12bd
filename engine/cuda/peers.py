"""Memory that every rank has on its card, mapped by all others: CUDA IPC between processes.

Each exports one raw allocation and opens those of its peers; what is exchanged is 72 bytes a rank.
The memory lives as long as the process: to free what a peer has mapped would be undefined.
"""

from __future__ import annotations

import logging

import numpy as np
import torch

from twolane.engine.cuda.driver import EXPORT_BYTES, CudaError, export_memory, open_memory
from twolane.engine.cuda.memory import RawMemory
from twolane.engine.kernels.rows.all_reduce import MAX_ROWS, PeerBuffers
from twolane.engine.parallel.collective import Collective, least

log = logging.getLogger(__name__)


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
        ours = export_memory(memory.address)
    except CudaError as error:
        log.warning("%s", error)
        ours = bytes(EXPORT_BYTES)
    told = _exchange(ranks, ours, device)
    try:
        for rank, text in enumerate(told):
            addresses.append(memory.address if rank == ranks.rank else open_memory(text))
    except CudaError as error:
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
