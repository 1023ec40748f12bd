"""A cluster of processes that sizes its pools: no request fails, and what it decides is told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.scaling.live import describe, draw
from benchmarks.scaling.live_run import PHASES, LiveRun, Request, paced_model, run_live
from twolane.testing import start_local


async def test_more_rows_than_one_worker_holds_start_another_and_all_are_answered(
    tmp_path: Path,
) -> None:
    with start_local(
        model=paced_model(tmp_path), engine="fake", autoscale=True, budget=3, slo_gap_s=0.05
    ) as cluster:
        async with cluster.aclient() as client:
            asking = [
                asyncio.create_task(
                    client.generate(f"once {n}", max_tokens=200, seed=n, ignore_eos=True)
                )
                for n in range(40)
            ]
            await asyncio.to_thread(cluster.wait_for, "starting", "decode-1", timeout_s=60)
            answers = await asyncio.gather(*asking)
        assert [len(answer.token_ids) for answer in answers] == [200] * 40
        told = [str(its["text"]) for its in cluster.events if its["kind"] == "scaled"]
        assert any(text.startswith("start a decode worker: decode has 1 of 2") for text in told)
        with cluster.admin() as admin:
            status = await asyncio.to_thread(admin.status)
        assert len([its for its in status.workers if its.state != "gone"]) <= 3
        assert not {name for name in status.counters if name.startswith("failed")}


@pytest.mark.soak
def test_burst_flip_zero_and_the_first_request_lose_none(tmp_path: Path) -> None:
    run = run_live(tmp_path)
    assert run.errors == []
    assert run.most_held <= 4
    bounds, begin = {}, 0.0
    for phase in PHASES:
        bounds[phase.name] = begin, begin + phase.lasts_s
        begin += phase.lasts_s
    assert (2, 2) in run.sizes(*bounds["burst"])
    assert (3, 1) in run.sizes(*bounds["prompts"])
    assert (0, 0) in run.sizes(*bounds["idle"])
    assert run.flips
    assert all(flip.serves_s is not None and flip.serves_s < 1.0 for flip in run.flips)


def test_figures_of_a_run_name_what_failed_and_can_be_drawn() -> None:
    run = LiveRun(
        requests=[
            Request(1.0, "calm", ttft_s=0.1, took_s=1.0),
            Request(2.0, "calm", ttft_s=0.3, took_s=1.0),
            Request(3.0, "burst", error="no worker"),
            Request(325.0, "first", ttft_s=5.0),
        ]
    )
    figures = describe(run)
    assert figures["errors"] == ["no worker"]
    assert figures["ttft_s_by_phase"] == {"calm": 0.2, "first": 5.0}
    assert figures["first_after_zero_ttft_s"] == 5.0
    assert len(draw(run).axes) == 2


def test_a_flip_serves_once_routers_have_the_worker_in_its_new_role_alone() -> None:
    run = LiveRun()
    run.heard(10.0, "flip decode-1 to prefill: decode has a worker to spare")
    for now, roles in ((10.1, ("decode",)), (10.2, ("prefill", "decode")), (10.6, ("prefill",))):
        assert [flip.serves_s for flip in run.flips] == [None]
        its = SimpleNamespace(worker_id="decode-1", state="alive", roles=roles)
        run.looked(now, SimpleNamespace(workers=[its]))  # type: ignore[arg-type]
    assert [round(flip.serves_s or 0.0, 3) for flip in run.flips] == [0.6]
