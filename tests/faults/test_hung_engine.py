"""An engine that hangs in a real process: requests go elsewhere, it is killed and comes back."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tests.cluster.real_cluster import settled
from tests.deploy.clusters import model_with
from tests.own_time import own_time
from twolane.deploy.bundled import model_path
from twolane.deploy.spec.settings import TimingSpec
from twolane.deploy.spec.spec_json import to_json
from twolane.deploy.spec.specs import WorkerSpec
from twolane.router.operators.comparison import sampling
from twolane.security.identity import Role
from twolane.testing import LocalCluster, start_local
from twolane.v1 import facts_pb2, worker_pb2_grpc

BOUND_S = 8.0  # of a request: its worker's step is late after 1.7 s


def told(cluster: LocalCluster, after: int) -> list[tuple[str, str]]:
    return [(event["kind"], event.get("name", "")) for event in cluster.events[after:]]


def model_that_hangs(folder: Path, hang: Path) -> Path:
    """A fake model: no step ends in the process whose id is in the file `hang`."""
    model = folder / "model"
    shutil.copytree(model_path(), model)
    facts = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**facts, "fake_hangs_by_file": str(hang)}))
    return model


@contextmanager
def worker_with_a_hung_step(tmp_path: Path, timing: TimingSpec) -> Iterator[subprocess.Popen[str]]:
    """A worker process that nobody watches. Inside the block its only step never ends."""
    hang, state = tmp_path / "hang", tmp_path / "state"
    state.mkdir()
    spec = WorkerSpec(
        worker_id="w",
        epoch=1,
        roles=("prefill",),
        model=model_with(model_dir=model_that_hangs(tmp_path, hang), engine="fake"),
        routers=(),
        timing=timing,
        state_dir=str(state),
    )
    command = [sys.executable, "-m", "twolane.deploy", "worker", "--spec-from-stdin"]
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(to_json(spec))
        worker.stdin.close()
        worker.stdin = None
        endpoint = worker.stdout.readline().split(" serves at ")[1].split()[0]
        hang.write_text(str(worker.pid))
        asyncio.run(begin_step(spec, endpoint))
        yield worker
    finally:
        worker.kill()
        worker.communicate()


async def begin_step(spec: WorkerSpec, endpoint: str) -> None:
    """Ask for an answer for so long that the step has begun."""
    request = facts_pb2.AnswerAloneRequest(token_ids=[7] * 20, sampling=sampling(3))
    async with spec.credentials.channel(endpoint, Role.WORKER) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
            await stub.AnswerAlone(
                request, metadata=spec.credentials.metadata(endpoint), timeout=1.0
            )


def test_orphan_whose_step_hangs_ends_all_the_same(tmp_path: Path) -> None:
    with worker_with_a_hung_step(tmp_path, TimingSpec(orphan_s=2.0)) as worker:
        _, said = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "all that it serves have been silent for 2 s" in said


@pytest.mark.soak
def test_worker_whose_step_hangs_ends_after_it_was_asked_to_stop(tmp_path: Path) -> None:
    with worker_with_a_hung_step(tmp_path, TimingSpec(stop_grace_s=0.5)) as worker:
        worker.terminate()
        _, said = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "was asked to stop" in said


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["decode-0", pytest.param("prefill-0", marks=pytest.mark.soak)])
async def test_worker_that_hangs_costs_seconds_and_is_restarted(name: str, tmp_path: Path) -> None:
    hang = tmp_path / "hang"
    model = model_that_hangs(tmp_path, hang)
    with start_local(
        model=model, engine="fake", prefill=2, decode=2, suspicion_s=1.0, heartbeat_s=0.3
    ) as cluster:
        async with cluster.aclient() as client:

            async def ask(i: int) -> float:
                begun = time.monotonic()
                await client.generate(token_ids=[3 + i] * 40, max_tokens=8, timeout_s=60)
                return time.monotonic() - begun

            await asyncio.gather(*map(ask, range(16)))  # first steps have more time
            hang.write_text(str(cluster.pid(name)))
            with own_time() as took:
                took_s = await asyncio.gather(*map(ask, range(16)))
            assert max(took_s) > 1.0
            assert took.s() < BOUND_S
            fenced = await asyncio.to_thread(cluster.wait_for, "fenced", name)
            assert "step has not ended" in fenced["text"]
            await settled(cluster, 4, within_s=15.0)
            n_events = len(cluster.events)
            with own_time() as took:
                await asyncio.gather(*map(ask, range(8)))
            assert took.s() < 1.5, "it takes part again, and hangs no more"
            assert ("fenced", name) not in told(cluster, after=n_events), "it has hung once"
