"""`twolane check` finds a wrong page: a router and two workers, with the real engine and their real
doors, in this process. What is planted is planted here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.deploy.clusters import model_with
from twolane.admin import AdminClient
from twolane.cli.app import app
from twolane.deploy.bundled import model_path
from twolane.deploy.process import engine_host
from twolane.deploy.process.engine_host import OpenedEngine
from twolane.deploy.process.serving import serving
from twolane.deploy.spec.settings import RouterSettings, TimingSpec, WorkerSettings
from twolane.deploy.spec.specs import RouterSpec, WorkerSpec
from twolane.engine.step import Engine, RowWork, Step

MODEL = model_with(model_dir=model_path(), exact=True, device="cpu", n_pages=128)
COMMON: dict[str, Any] = {
    "model": MODEL,
    "secret": "a-secret-of-the-cluster",
    "bind_host": "127.0.0.1",
    "timing": TimingSpec(heartbeat_s=0.1, suspicion_s=30.0, lease_s=30.0, stop_grace_s=0.2),
}


def spoil_landed_pages(engine: Engine) -> None:
    """A bit of the first page of each row that another worker has begun, before it is read."""
    submit = engine.submit
    ends: dict[int, int] = {}  # of what was computed here, by row

    def spoiled(work: Sequence[RowWork]) -> Step:
        for row in work:
            if row.start and ends.get(row.row) != row.start:
                page = engine.pool[row.pages[0]]
                page[len(page) // 3] ^= 0x40
            ends[row.row] = row.start + row.n_new
        return submit(work)

    engine.submit = spoiled  # type: ignore[method-assign]


@pytest.fixture
def is_spoilt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether decode-0 gets an engine that does so."""
    open_engine = engine_host.open_engine

    @contextmanager
    def opened(spec: Any, *, name: str, **how: Any) -> Iterator[OpenedEngine]:
        with open_engine(spec, name=name, **how) as power:
            if request.param and name == "decode-0":
                spoil_landed_pages(power.engine)
            yield power

    monkeypatch.setattr(engine_host, "open_engine", opened)
    return bool(request.param)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[str]:
    """A prefill and a decode worker, between which pages travel by TCP; the operators' endpoint."""
    router = RouterSpec(
        router_id="router-0",
        settings=RouterSettings(port=0, no_http=True),
        admin_socket=str(folder / "admin.sock"),
        **COMMON,
    )
    async with AsyncExitStack() as stack:
        where = await stack.enter_async_context(serving(router))
        for n, role in enumerate(("prefill", "decode"), 1):
            spec = WorkerSpec(
                worker_id=f"{role}-0",
                epoch=n,
                roles=(role,),
                routers=(where.worker_endpoint,),
                settings=WorkerSettings(transports=("tcp",)),
                **COMMON,
            )
            await stack.enter_async_context(serving(spec))
        with AdminClient(where.admin_endpoint) as admin:
            async with asyncio.timeout(60):
                while len(await asyncio.to_thread(alive, admin)) < 2:
                    await asyncio.sleep(0.02)
        yield where.admin_endpoint


def alive(admin: AdminClient) -> list[str]:
    return [its.worker_id for its in admin.status().workers if its.state == "alive"]


@pytest.mark.parametrize("is_spoilt", [True, False], indirect=True)
async def test_a_wrong_page_of_a_live_cluster_is_reported_and_a_right_one_is_not(
    tmp_path: Path, *, is_spoilt: bool
) -> None:
    line = ["check", "--prompts", "1", "--max-tokens", "6", "--endpoint"]

    def check(endpoint: str, *more: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*line, endpoint, *more])
        return done.exit_code, done.output

    async with cluster(tmp_path) as endpoint:
        code, told = await asyncio.to_thread(check, endpoint)
        assert code == int(is_spoilt), told
        difference = "different: prefill-0 > decode-0 (1 of 3 comparisons)"
        assert (difference in told) is is_spoilt, told
        _, told = await asyncio.to_thread(check, endpoint, "--json")
        comparisons = [json.loads(each) for each in told.splitlines()]
        pairs = {(its["prefill_worker"], its["decode_worker"]): its for its in comparisons}
        assert all(pairs[name, name]["equal"] for name in ("prefill-0", "decode-0"))
        pair = pairs["prefill-0", "decode-0"]
        assert (pair["equal"], pair["exactness"], pair["error"]) == (not is_spoilt, "", "")
