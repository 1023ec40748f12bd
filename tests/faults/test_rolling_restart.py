"""All routers are stopped in turn under load, and start again with code that has changed meanwhile:
no SDK stream and no HTTP stream notices."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from benchmarks.cluster.router_kills_run import told
from tests.own_time import own_time
from tests.ports import router_ports
from tests.until import wait_until
from twolane import AsyncClient
from twolane.admin import AdminClient
from twolane.deploy.bundled import model_path
from twolane.testing import LocalCluster, start_local

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "decode_worker", "deploy", "engine", "kvtransfer", "prefill_worker", "router", "twolane",
    "worker",
)  # fmt: skip
N_ROUTERS, N_SDK, N_HTTP, STEP_S = 3, 6, 6, 0.02
N_SDK_TOKENS = 300  # long, so that some of these streams move when their router stops
N_HTTP_TOKENS = 60  # short, because a router that stops waits for them
FIRST_TOKEN_S = 10.0  # of a new request, in own time
# A busy machine stops a worker for seconds: it is not to be suspected then, and its rows computed
# again elsewhere.
TIMES: dict[str, Any] = {"heartbeat_s": 0.2, "suspicion_s": 30.0, "lease_s": 60.0}


def copy_of_the_code(folder: Path) -> Path:
    """With what is compiled of it: Python compiles again what changes later."""
    for name in PACKAGES:
        being_written = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=being_written)
    return folder


def wait_until_it_knows_the_others(cluster: LocalCluster, name: str) -> None:
    started = [e for e in cluster.events if (e["kind"], e.get("name")) == ("started", name)]
    with AdminClient(started[-1]["admin"]) as admin:

        def knows_all() -> bool:
            return len([r for r in admin.status().routers if not r.unreached]) >= N_ROUTERS

        wait_until(knows_all, f"{name} knows the others", every_s=0.05)


class Load:
    """Streams of both kinds, until it is over."""

    def __init__(self, cluster: LocalCluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self.is_over = False
        self.n_sdk = self.n_http = self.n_takeovers = 0
        self.first_token_s: list[float] = []

    async def sdk(self, number: int) -> None:
        expected: tuple[Any, ...] | None = None
        async with AsyncClient(self._cluster.endpoint) as client:
            while not self.is_over:
                answer = await client.generate(
                    f"prompt {number}", max_tokens=N_SDK_TOKENS, ignore_eos=True, seed=number
                )
                expected = expected or told(answer)
                assert told(answer) == expected
                assert answer.ledger.attempts == 1, "no row was computed again"
                self.n_sdk += 1
                self.n_takeovers += answer.ledger.takeovers

    async def short_sdk(self, number: int) -> None:
        """New requests without end, on one connection."""
        async with AsyncClient(self._cluster.endpoint) as client:
            while not self.is_over:
                began = self._clock()
                await client.generate(f"short {number}", max_tokens=1, ignore_eos=True)
                self.first_token_s.append(self._clock() - began)
                await asyncio.sleep(STEP_S)

    async def http(self, number: int) -> None:
        """Each on a connection of its own."""
        body = {"prompt": f"prompt {number}", "max_tokens": N_HTTP_TOKENS, "ignore_eos": True}
        url = f"http://{self._cluster.http_endpoint}/v1/completions"
        while not self.is_over:
            async with httpx2.AsyncClient(timeout=60, verify=False) as client:
                response = await client.post(url, json={**body, "seed": number, "stream": True})
            assert response.status_code == 200, response.text
            assert response.text.endswith("data: [DONE]\n\n")
            self.n_http += 1


@pytest.mark.timeout(300)
async def test_rolling_restart_is_noticed_by_no_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = copy_of_the_code(tmp_path / "code")
    monkeypatch.setenv("PYTHONPATH", str(code))
    model = tmp_path / "model"
    shutil.copytree(model_path(), model)
    facts = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(
        json.dumps({**facts, "fake_step_s": STEP_S, "fake_paced": True})
    )
    more = {**router_ports(N_ROUTERS), **TIMES}
    with (
        start_local(
            model=model, engine="fake", routers=N_ROUTERS, stop_grace_s=30.0, **more
        ) as cluster,
        own_time() as took,
    ):
        for nth in range(N_ROUTERS):
            await asyncio.to_thread(wait_until_it_knows_the_others, cluster, f"router-{nth}")
        marks = tmp_path / "marks"
        marks.mkdir()
        with (code / "router" / "router.py").open("a") as file:  # the next version
            file.write(
                f"\nimport os, pathlib\npathlib.Path({str(marks)!r}, str(os.getpid())).touch()\n"
            )
        load = Load(cluster, lambda: took.seen.own_s)
        async with asyncio.TaskGroup() as tasks:
            for number in range(N_SDK):
                tasks.create_task(load.sdk(number))
                tasks.create_task(load.short_sdk(number))
            for number in range(N_HTTP):
                tasks.create_task(load.http(number))
            try:
                for nth in range(N_ROUTERS):
                    await asyncio.sleep(0.5)  # some streams at each; none depends on it
                    n_events, name = len(cluster.events), f"router-{nth}"
                    await asyncio.to_thread(wait_until_it_knows_the_others, cluster, name)
                    cluster.kill(name, signal.SIGTERM)
                    await asyncio.to_thread(
                        cluster.wait_for, "started", name, after=n_events, timeout_s=120
                    )
            finally:
                load.is_over = True
        routers = {str(cluster.pid(f"router-{nth}")) for nth in range(N_ROUTERS)}
        assert routers <= {mark.name for mark in marks.iterdir()}
    assert load.n_sdk >= N_SDK
    assert load.n_http >= N_HTTP
    # Clients that asked the stopping router again would count many more.
    assert 0 < load.n_takeovers <= 2 * N_SDK * N_ROUTERS
    worst = sorted(load.first_token_s)[-5:]
    assert worst[-1] < FIRST_TOKEN_S, worst
