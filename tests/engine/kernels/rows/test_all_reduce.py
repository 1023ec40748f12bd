"""The sum over ranks in the interpreter: one rank runs, the others' buffers are filled by hand."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch

from twolane.engine.kernels.rows.all_reduce import PeerBuffers, all_reduce, all_reduce_norm
from twolane.engine.kernels.rows.norm import reference_rms_norm

ROWS, WIDTH = 4, 40
AHEAD = 1 << 20  # how far the peers' flags are ahead: nobody is waited for


class Ranks:
    """Every rank's memory in this process; `peers` is how `rank` sees it."""

    def __init__(self, rank: int, ranks: int, dtype: torch.dtype, *, counted: int = 0) -> None:
        flag_bytes = PeerBuffers.flag_bytes(ranks, ROWS)
        n_bytes = PeerBuffers.bytes_for(ranks, ROWS, WIDTH, dtype.itemsize)
        held = [torch.zeros(n_bytes + 128, dtype=torch.uint8) for _ in range(ranks)]
        self.raw = [h[-h.data_ptr() % 128 :][:n_bytes] for h in held]
        self.flags = [raw[: 4 * ranks * ROWS].view(torch.int32).view(ROWS, -1) for raw in self.raw]
        self.buffers = [raw[flag_bytes:].view(dtype).view(2, ROWS, WIDTH) for raw in self.raw]
        self.peers = PeerBuffers(
            rank=rank,
            addresses=torch.tensor([raw.data_ptr() for raw in self.raw]),
            counts=torch.full((ROWS,), counted, dtype=torch.int32),
            width=WIDTH,
        )
        self.flags[rank].fill_((counted + AHEAD + 2**31) % 2**32 - 2**31)


@pytest.mark.parametrize(("rank", "ranks"), [(0, 2), (1, 2), (2, 4)])
def test_rows_of_all_ranks_are_added_in_their_order(rank: int, ranks: int) -> None:
    world = Ranks(rank, ranks, torch.float16)
    for launch in (1, 2, 3):
        parts = torch.randn(ranks, 3, WIDTH).half()
        for peer in set(range(ranks)) - {rank}:
            world.buffers[peer].fill_(torch.nan)
            world.buffers[peer][launch % 2, :3] = parts[peer]
        out = torch.full((3, WIDTH), torch.nan, dtype=torch.float16)
        all_reduce(parts[rank], world.peers, out=out)
        expected = torch.zeros(3, WIDTH)
        for part in parts:
            expected += part.float()
        assert torch.equal(out, expected.half())
        assert torch.equal(world.buffers[rank][launch % 2, :3], parts[rank])
        assert world.peers.counts.tolist() == [launch] * 3 + [0]
        for peer in set(range(ranks)) - {rank}:
            assert world.flags[peer][:, rank].tolist() == [launch] * 3 + [0]
            assert not world.flags[peer][:, peer].any(), "a flag that is another rank's to set"


def test_programs_count_apart_and_counts_wrap_around() -> None:
    world = Ranks(0, 2, torch.float32, counted=2**31 - 2)
    for n in (1, 4, 2):
        x = torch.randn(n, WIDTH)
        all_reduce(x, world.peers, out=x)
    assert world.peers.counts.tolist() == [-(2**31) + 1, -(2**31), 2**31 - 1, 2**31 - 1]


def test_residual_and_norm_are_those_of_separate_steps() -> None:
    world = Ranks(1, 2, torch.float32)
    wide = torch.randn(2, 3 * WIDTH)
    x, weight, residual = wide[:, :WIDTH], torch.randn(WIDTH), torch.randn(2, WIDTH)
    world.buffers[0][1, :2] = torch.randn(2, WIDTH)
    normed, total = reference_rms_norm(x + world.buffers[0][1, :2], weight, 1e-5, residual)
    out = torch.full((2, WIDTH), torch.nan)
    all_reduce_norm(x, weight, world.peers, residual=residual, out=out, epsilon=1e-5)
    assert torch.allclose(out.double(), normed, atol=1e-5)
    assert torch.allclose(residual.double(), total, atol=1e-6)
