"""A small cluster on the fake engine, at a pace at which it is soon overloaded, and what can go
wrong with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.ports import free_ports
from tests.redis_servers import RedisServer, redis_server
from twolane import AsyncClient
from twolane.errors import TwolaneError
from twolane.rpc.secret import new_secret
from twolane.testing import LocalCluster, start_local

BUNDLED = Path(__file__).parents[3] / "deploy" / "bundled" / "model"
PACE = {"fake_paced": True, "fake_prefill_token_s": 0.002, "fake_decode_row_s": 0.01}
PAGES, PAGE_TOKENS, ROWS, QUEUE = 64, 16, 4, 60
CONTEXT = PAGES * PAGE_TOKENS - PAGE_TOKENS
Ask = dict[str, Any]
SHORT: Ask = {"token_ids": list(range(5, 85)), "max_tokens": 40}
LARGE: Ask = {"token_ids": [7] * (CONTEXT - 60), "max_tokens": 50}  # fills a worker's pages
WRONG: Ask = {"token_ids": [1], "max_tokens": 10_000_000}  # is refused


@dataclass(frozen=True)
class FaultyCluster:
    its: LocalCluster
    store: RedisServer
    folder: Path
    worker_port: int  # of the router, for workers

    @property
    def launcher(self) -> int:
        """The process id of the controller: the front's only child at first."""
        front = self.its._process.pid
        children = Path(f"/proc/{front}/task/{front}/children").read_text().split()
        return int(children[0])

    @contextmanager
    def asked(self, n_clients: int, *what: Ask) -> Iterator[None]:
        """Until the block ends, so many clients ask for these in turn, whatever comes of it."""
        with _asking(self.its.endpoint, n_clients, what):
            yield

    @contextmanager
    def frozen(self, pid: int) -> Iterator[None]:
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @contextmanager
    def never_starting(self, name: str) -> Iterator[None]:
        """That worker dies, and cannot come back: somebody has its port for metrics."""
        host, _, port = self._metrics(name).rpartition(":")
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.its.kill(name)
            while True:
                with contextlib.suppress(OSError):  # it ends
                    taken.bind((host, int(port)))
                    break
            taken.listen()
            yield

    def is_receiving(self) -> bool:
        """Whether the decode worker has granted pages to a prompt that is being computed."""
        figures = self._figures("decode-0")
        return figures["twolane_rows", "waiting"] > figures["twolane_decode_queue", ""]

    def has_quarantined(self) -> bool:
        """Whether the decode worker keeps pages to which a sender may still write."""
        return self._figures("decode-0")["twolane_pages", "quarantined"] > 0

    def is_full(self) -> bool:
        """Whether the decode worker has as many rows as it may have."""
        return self._figures("decode-0")["twolane_rows", "running"] == ROWS

    def _figures(self, worker: str) -> Counter[tuple[str, str]]:
        """What the worker tells by name and state ("" where there is none)."""
        with urllib.request.urlopen(f"http://{self._metrics(worker)}/metrics") as page:
            families = list(text_string_to_metric_families(page.read().decode()))
        figures: Counter[tuple[str, str]] = Counter()
        for sample in (sample for family in families for sample in family.samples):
            figures[sample.name, sample.labels.get("state", "")] = int(sample.value)
        return figures

    def _metrics(self, name: str) -> str:
        """Where the worker's figures are: host:port."""
        is_its = {"kind": "started", "name": name}.items()
        (started,) = [event for event in self.its.events if is_its <= event.items()]
        return str(started["metrics"])

    @contextmanager
    def unmappable(self) -> Iterator[None]:
        """One more decode worker, whose memory cannot be mapped."""
        options = (
            *("--role", "decode", "--engine", "fake", "--model", str(self.folder / "model")),
            *("--router", f"127.0.0.1:{self.worker_port}", "--pages", str(PAGES)),
            *("--page-tokens", str(PAGE_TOKENS), "--secret-file", str(self.folder / "secret")),
        )
        command = [sys.executable, "-m", "tests.deploy.monitoring.unmappable_worker", "worker"]
        with subprocess.Popen([*command, *options]) as process:
            try:
                yield
            finally:
                process.kill()


@contextmanager
def faulty_cluster(folder: Path) -> Iterator[FaultyCluster]:
    """One prefill and one decode worker, an autoscaler, a store."""
    shutil.copytree(BUNDLED, folder / "model")
    path = folder / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | PACE))
    (folder / "secret").write_text(new_secret())
    worker_port, *metrics_ports = free_ports(3)
    with (
        redis_server(folder / "store") as store,
        start_local(
            folder / "model", engine="fake", prefill=1, decode=1, heartbeat_s=0.5, suspicion_s=2.0,
            no_http=True, pages=PAGES, page_tokens=PAGE_TOKENS, decode_rows=ROWS, max_queued=QUEUE,
            worker_port=worker_port, worker_metrics_port=min(metrics_ports),
            secret_file=folder / "secret", store=store.url, autoscale=True,
            min_prefill=1, max_prefill=1, min_decode=1, max_decode=1,
        ) as cluster,
    ):  # fmt: skip
        yield FaultyCluster(cluster, store, folder, worker_port)


@contextmanager
def _asking(endpoint: str, n_clients: int, what: tuple[Ask, ...]) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def ask(client: AsyncClient, first: int) -> None:
        for turn in range(first, sys.maxsize):
            try:
                await client.generate(**what[turn % len(what)])
            except TwolaneError:
                await asyncio.sleep(0.2)  # refused: not at once again

    async def ask_all() -> None:
        async with AsyncClient(endpoint) as client:
            asking = [asyncio.create_task(ask(client, i)) for i in range(n_clients)]
            await ended.wait()
            for task in asking:
                task.cancel()
            await asyncio.wait(asking)

    thread = threading.Thread(target=loop.run_until_complete, args=(ask_all(),))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
