"""Memory of every rank's card, mapped by all other ranks: CUDA IPC between processes.

Each rank exports one raw allocation and opens those of its peers; 72 bytes per rank are exchanged.
The memory lives as long as the process: freeing what a peer has mapped is undefined.
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
    """Buffers for all-reducing rows of that width and dtype. All ranks call this together.

    None, on every rank, if one of the cards cannot map another's memory.
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
    gathered = _exchange(ranks, ours, device)
    try:
        for rank, text in enumerate(gathered):
            addresses.append(memory.address if rank == ranks.rank else open_memory(text))
    except CudaError as error:
        log.warning("%s", error)
    if not least(ranks, int(len(addresses) == ranks.ranks), device):
        log.warning("the GPUs cannot map each other's memory: NCCL does every all-reduce")
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
    gathered: bytes = ranks.all_gather(held).cpu().numpy().tobytes()
    return [gathered[at : at + len(ours)] for at in range(0, len(gathered), len(ours))]
