"""A worker of a cluster of processes that takes the other role under load."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.timing import PATIENT
from twolane.admin import AdminClient
from twolane.deploy.process.compose_worker import ready_limits
from twolane.deploy.spec.cluster_spec import ClusterSpec, PoolSpec
from twolane.deploy.spec.specs import ModelSpec
from twolane.engine.config import EngineConfig
from twolane.errors import PreconditionError
from twolane.status import WorkerInfo
from twolane.testing import LocalCluster, start_local
from twolane.v1 import acts_pb2

PROMPT = "The fox ran over the hill and saw a small house."


def worker(admin: AdminClient, name: str) -> WorkerInfo:
    known = [its for its in admin.status().workers if its.worker_id == name]
    return min(known, key=lambda its: its.state == "gone")


def flip(admin: AdminClient, name: str) -> acts_pb2.ActResponse:
    done: acts_pb2.ActResponse = admin.call(
        "FlipWorker", acts_pb2.FlipWorkerRequest(worker_id=name, act=acts_pb2.Act())
    )
    return done


def wait_for_role(
    admin: AdminClient, name: str, role: str, *, but: int = 0, within_s: float = 60.0
) -> None:
    """Also until it is shown in the pool of that role; `but` is an epoch that does not count."""
    end_s = time.monotonic() + within_s
    wanted = ((role,), role, "alive")
    while ((its := worker(admin, name)).roles, its.pool, its.state) != wanted or its.epoch == but:
        assert time.monotonic() < end_s, its
        time.sleep(0.02)


async def ask(cluster: LocalCluster, n: int, max_tokens: int) -> list[list[int]]:
    async with cluster.aclient() as client:
        answers = await asyncio.gather(
            *(
                client.generate(
                    f"{PROMPT} {i}", max_tokens=max_tokens, temperature=0, seed=7, ignore_eos=True
                )
                for i in range(n)
            )
        )
    return [list(answer.token_ids) for answer in answers]


def dies_and_comes_back(cluster: LocalCluster, admin: AdminClient) -> None:
    """The next incarnation has the role that the worker was flipped to."""
    epoch, after = worker(admin, "decode-1").epoch, len(cluster.events)
    cluster.kill("decode-1")
    cluster.wait_for("started", "decode-1", after=after)
    wait_for_role(admin, "decode-1", "prefill", but=epoch)
    with pytest.raises(PreconditionError, match="decode-0 is the last worker of decode"):
        flip(admin, "decode-0")


@pytest.mark.parametrize("engine", ["fake", "model"])
async def test_flip_under_load_changes_no_answer_and_outlives_the_process(engine: str) -> None:
    with start_local(
        engine=engine, prefill=1, decode=2, flips=True, exact=engine == "model", **PATIENT
    ) as cluster:
        before = await ask(cluster, 8, 60)
        with cluster.admin() as admin:
            asking = asyncio.create_task(ask(cluster, 8, 60))
            await asyncio.sleep(0.05)
            done = await asyncio.to_thread(flip, admin, "decode-1")
            assert [change.subject for change in done.changes] == [
                "decode-1", "pool decode", "pool prefill",
            ]  # fmt: skip
            await asyncio.to_thread(wait_for_role, admin, "decode-1", "prefill")
            assert await asking == before
            assert await ask(cluster, 8, 60) == before
            status = await asyncio.to_thread(admin.status)
            resumed = {
                name: n for name, n in status.counters.items() if name.startswith("resumes.")
            }
            assert not resumed, "no row was computed again"
            if engine == "fake":
                await asyncio.to_thread(dies_and_comes_back, cluster, admin)
                assert await ask(cluster, 8, 60) == before


def test_worker_that_flips_is_warmed_up_for_both_roles() -> None:
    model = ModelSpec(config=EngineConfig(model_dir="m", model_name="m"))  # type: ignore[arg-type]

    def rows(*, flips: bool) -> int:
        pools = [PoolSpec(name="prefill", roles=("prefill",), model=model, flips=flips)]
        (spec,) = ClusterSpec(model=model, pools=tuple(pools)).workers()
        return ready_limits(spec).decode_rows

    assert rows(flips=False) == 1
    assert rows(flips=True) > 1
