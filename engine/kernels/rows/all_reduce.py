"""One-shot all-reduce over ranks, through each other's memory, fused with the residual and norm.

    rank's program of a row        own buffer            peers
    row of the partial sums ------> written
    flags of all peers  <----------------------------- "row is written", release
    waits for its own flags                            acquire
    reads the row of every rank in order, adds in float32, rounds once
    residual += sum, norm of it

Bytes per row: the row written once and read once from each peer, over NVLink. For few rows a ring
saves bytes, but loses far more time in waits. Every rank adds in the order of the ranks, so all get
the same bits, and a row's bits depend only on that row. Idea: the one-shot all-reduce of
TensorRT-LLM and vLLM's custom_all_reduce, which also fuse the norm.

Nothing is ever reset, so a CUDA graph can contain it. Program r counts its launches in `counts[r]`:
its flags are set to the count, whose lowest bit selects one of two buffers:

    launch k      writes buffer k % 2, signals, waits for k of all peers, reads their buffer k % 2
    launch k + 1  writes the other buffer: a peer may still be reading k
    launch k + 2  writes buffer k % 2 again: k + 1 has seen every peer begin its k + 1, which a peer
                  does only after all reads of its k

All ranks must make the same launches in the same order, or they wait forever.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,assignment,unreachable"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.pdl import ready
from twolane.engine.kernels.sizes import next_power_of_2

MAX_WIDTH = 16384
MAX_ROWS = 128  # one program per row: all must run at once, or the wait may never end
_ALIGN = 128


@triton.jit
def _all_reduce_kernel(
    x,
    residual,
    weight,
    out,
    addresses,
    counts,
    epsilon,
    x_stride,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    RANKS_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    FLAG_BYTES: tl.constexpr,
    NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH_PAD)
    keep = column < WIDTH
    kind = x.dtype.element_ty
    # Read constant data before the wait.
    peer = tl.arange(0, RANKS_PAD)
    is_peer = (peer < RANKS) & (peer != RANK)
    signals = tl.load(addresses + peer, mask=is_peer, other=0).to(tl.uint64)
    bases = ()
    for rank in tl.static_range(RANKS):
        bases = bases + (tl.load(addresses + rank).to(tl.uint64),)  # noqa: RUF005
    if NORM:
        scale = tl.load(weight + column, mask=keep, other=0.0).to(tl.float32)
    ready(PDL)
    count = tl.load(counts + row) + 1
    place = ((count & 1) * ROWS + row).to(tl.int64) * WIDTH
    mine = tl.load(x + row.to(tl.int64) * x_stride + column, mask=keep, other=0.0)
    own = tl.multiple_of((bases[RANK] + FLAG_BYTES).to(tl.pointer_type(kind)), 16)
    tl.store(own + place + column, mine, mask=keep)
    tl.debug_barrier()  # the whole row is written before it is signalled
    told = signals.to(tl.pointer_type(tl.int32)) + row * RANKS + RANK
    tl.atomic_xchg(told, count, mask=is_peer, sem="release", scope="sys")
    if NORM:
        held = tl.load(residual + row.to(tl.int64) * WIDTH + column, mask=keep, other=0.0)
    heard = bases[RANK].to(tl.pointer_type(tl.int32)) + row * RANKS + peer
    behind = -1
    while behind < 0:
        found = tl.atomic_add(heard, 0, mask=is_peer, sem="acquire", scope="sys")
        # A peer may be one launch ahead; counts may wrap around.
        behind = tl.min(tl.where(is_peer, found - count, 0), 0)
    tl.debug_barrier()
    total = tl.zeros([WIDTH_PAD], tl.float32)
    for rank in tl.static_range(RANKS):
        if rank == RANK:
            total += mine.to(tl.float32)
        else:
            theirs = tl.multiple_of((bases[rank] + FLAG_BYTES).to(tl.pointer_type(kind)), 16)
            total += tl.load(theirs + place + column, mask=keep, other=0.0).to(tl.float32)
    summed = total.to(kind)
    if NORM:
        rounded = (summed.to(tl.float32) + held.to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(residual + row.to(tl.int64) * WIDTH + column, rounded, mask=keep)
        wide = rounded.to(tl.float32)  # what the next addition will read
        mean = tl.sum(wide * wide, 0) / WIDTH
        normed = wide * tl.rsqrt(mean + epsilon) * scale
        tl.store(out + row.to(tl.int64) * WIDTH + column, normed, mask=keep)
    else:
        tl.store(out + row.to(tl.int64) * WIDTH + column, summed, mask=keep)
    tl.store(counts + row, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerBuffers:
    """The buffers of all ranks for rows of one width and dtype, as one rank sees them.

    `addresses` [ranks] int64 on the device: each rank's `bytes_for(…)` bytes, zeroed before any
    rank launches; aligned to 128 bytes, accessible from this device. `counts` [rows] int32, zeroed,
    this rank's own.
    """

    rank: int
    addresses: torch.Tensor
    counts: torch.Tensor
    width: int
    memory: object = None  # this rank's own, kept alive

    @property
    def ranks(self) -> int:
        return len(self.addresses)

    @property
    def rows(self) -> int:
        return len(self.counts)

    @staticmethod
    def flag_bytes(ranks: int, rows: int) -> int:
        return -(-4 * ranks * rows // _ALIGN) * _ALIGN

    @staticmethod
    def bytes_for(ranks: int, rows: int, width: int, itemsize: int) -> int:
        """Flags, then the two buffers of every row."""
        assert width * itemsize % 16 == 0
        return PeerBuffers.flag_bytes(ranks, rows) + 2 * rows * width * itemsize


def all_reduce(x: torch.Tensor, peers: PeerBuffers, *, out: torch.Tensor, pdl: int = 0) -> None:
    """out `[n, width]` dense = the sum of all ranks' x `[n, width]` (rows may be strided); n up to
    `peers.rows`. out may be x."""
    _launch(x, x, x, peers, out=out, epsilon=0.0, norm=False, pdl=pdl)


def all_reduce_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    peers: PeerBuffers,
    *,
    residual: torch.Tensor,
    out: torch.Tensor,
    epsilon: float,
    pdl: int = 0,
) -> None:
    """residual `[n, width]` += the sum of all ranks' x, first rounded to x's dtype; out = the norm
    of it: the same as `all_reduce` followed by `rms_norm`."""
    assert residual.is_contiguous()
    assert residual.shape == x.shape
    _launch(x, residual, weight, peers, out=out, epsilon=epsilon, norm=True, pdl=pdl)


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    peers: PeerBuffers,
    *,
    out: torch.Tensor,
    epsilon: float,
    norm: bool,
    pdl: int,
) -> None:
    n, width = x.shape
    assert 1 <= n <= peers.rows
    assert width == peers.width <= MAX_WIDTH
    assert x.stride(1) == 1
    assert out.is_contiguous()
    assert out.shape == x.shape
    launch(_all_reduce_kernel, (n,))(
        x,
        residual,
        weight,
        out,
        peers.addresses,
        peers.counts,
        epsilon,
        x.stride(0),
        RANK=peers.rank,
        RANKS=peers.ranks,
        RANKS_PAD=next_power_of_2(peers.ranks),
        ROWS=peers.rows,
        WIDTH=width,
        WIDTH_PAD=next_power_of_2(width),
        FLAG_BYTES=PeerBuffers.flag_bytes(peers.ranks, peers.rows),
        NORM=norm,
        PDL=pdl,
        num_warps=4 if width <= 2048 else 8 if width <= 4096 else 16,
        launch_pdl=pdl,
    )
