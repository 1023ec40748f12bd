"""Who maps whose memory: as threads of one process, where an address is valid for everybody."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch

import twolane.engine.cuda.peers
from twolane.engine.cuda.driver import CudaError
from twolane.engine.cuda.peers import share_buffers
from twolane.engine.kernels.rows.all_reduce import PeerBuffers
from twolane.engine.parallel.collective import Collective
from twolane.engine.ranks.testing import with_ranks

CPU = torch.device("cpu")


def share(ranks: Collective) -> PeerBuffers | None:
    return share_buffers(ranks, width=64, dtype=torch.bfloat16, device=CPU)


def export(address: int) -> bytes:
    return address.to_bytes(8, "little").rjust(72, b"\0")


def test_every_rank_knows_everybodys_buffers_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twolane.engine.cuda.peers, "export_memory", export)
    monkeypatch.setattr(
        twolane.engine.cuda.peers, "open_memory", lambda text: int.from_bytes(text[64:], "little")
    )
    made = with_ranks(3, share)
    buffers = [peers for peers in made if peers is not None]
    assert [peers.rank for peers in buffers] == [0, 1, 2]
    addresses = [peers.addresses.tolist() for peers in buffers]
    assert addresses[0] == addresses[1] == addresses[2]
    own = [peers.memory.address for peers in buffers]  # type: ignore[attr-defined]
    assert addresses[0] == own
    assert len(set(own)) == 3


@pytest.mark.parametrize("broken", ["export_memory", "open_memory"])
def test_where_one_card_cannot_be_reached_nobody_tries(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def fail_once(what: object) -> bytes | int:
        calls.append(what)
        if len(calls) == 1:
            raise CudaError("no way")
        return export(1) if broken == "export_memory" else 1

    monkeypatch.setattr(twolane.engine.cuda.peers, "export_memory", export)
    monkeypatch.setattr(twolane.engine.cuda.peers, "open_memory", lambda text: 1)
    monkeypatch.setattr(twolane.engine.cuda.peers, broken, fail_once)
    if broken == "export_memory":  # its handle is nothing that can be opened
        monkeypatch.setattr(twolane.engine.cuda.peers, "open_memory", refuse_nothing)
    assert with_ranks(2, share) == [None, None]


def refuse_nothing(text: bytes) -> int:
    if not any(text):
        raise CudaError("no handle")
    return 1
