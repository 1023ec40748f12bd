"""A cluster from a topology file on cards: who gets which, and when a card is free again.

Expected on any machine with two cards or more: each worker is alone on its own, and a card has its
memory back by the time its worker is told to be dead, be it one process or two ranks.
"""

from __future__ import annotations

import os
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("grpc")
pytest.importorskip("yaml")

import torch

from twolane.engine.testing import write_random_model
from twolane.testing import LocalCluster, start_local

N_CARDS = torch.cuda.device_count()
SLACK_BYTES = 64 * 1024 * 1024  # of a card's memory, which the driver itself comes and goes with
KV_BYTES = 1024 * 1024 * 1024  # of a worker: what is not given back is seen
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(N_CARDS < 2, reason=f"needs 2 GPUs; {N_CARDS} here"),
]
LAUNCHERS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name == "ray" and find_spec("ray") is None, reason="ray is not installed"
        ),
    )
    for name in ("process", "ray")
]
COLOCATED = "pools: [{role: both, workers: 2}]"
GROUP = "pools: [{role: both, tensor_parallel: 2}]"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    return write_random_model(root / "m", "llama", seed=1, hidden_size=128, dtype="bfloat16")


def free_bytes() -> list[int]:
    """Of each card, whatever this process itself has taken there."""
    return [torch.cuda.mem_get_info(card)[0] for card in range(N_CARDS)]


def tokens(cluster: LocalCluster) -> tuple[int, ...]:
    with cluster.client() as client:
        return client.generate("once", max_tokens=16, temperature=0, seed=1).token_ids


def devices(cluster: LocalCluster) -> dict[str, tuple[str, ...]]:
    return {w.worker_id: w.devices for w in cluster.status().workers if w.state == "alive"}


@pytest.mark.usefixtures("cards_alone")
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("pools", [COLOCATED, GROUP], ids=["two_workers", "a_group"])
def test_a_worker_comes_back_on_its_own_cards_once_the_dead_has_let_go_of_them(
    pools: str, launcher: str, model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.yaml").write_text(f"workers: {{device: cuda, kv_bytes: {KV_BYTES}}}\n{pools}\n")
    before = free_bytes()
    with start_local(
        model_dir, topology=tmp_path / "t.yaml", launcher=launcher, start_timeout_s=300
    ) as cluster:
        given = devices(cluster)
        cards = [card for its in given.values() for card in its]
        assert len(cards) == len({*cards}) == 2
        taken = [b - now > KV_BYTES // 2 for b, now in zip(before, free_bytes(), strict=True)]
        assert sum(taken) == 2
        expected = tokens(cluster)
        n_events = len(cluster.events)
        victim = "colocated-0"
        os.kill(cluster.pid(victim), signal.SIGKILL)
        cluster.wait_for("died", victim, after=n_events)
        # the other card's worker, if there is one, still has its own
        held = sum(b - now > SLACK_BYTES for b, now in zip(before, free_bytes(), strict=True))
        assert held <= len(given) - 1
        cluster.wait_for("started", victim, after=n_events, timeout_s=300)
        end_s = time.monotonic() + 30.0  # until the router has heard of it
        while victim not in devices(cluster):
            assert time.monotonic() < end_s
        assert devices(cluster)[victim] == given[victim]
        assert tokens(cluster) == expected
    now = free_bytes()
    assert all(b - free < SLACK_BYTES for b, free in zip(before, now, strict=True))


def test_more_workers_than_cards_share_them_where_asked_for(model_dir: Path) -> None:
    n_workers = N_CARDS + 1
    with start_local(
        model_dir, colocated=n_workers, device="cuda", kv_bytes=KV_BYTES, share_gpus=True,
        start_timeout_s=300,
    ) as cluster:  # fmt: skip
        cards = [card for its in devices(cluster).values() for card in its]
        assert (len(cards), len({*cards})) == (n_workers, N_CARDS)
        assert tokens(cluster)
