"""What an attack on a running cluster costs it: memory of the router, and what others feel."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from twolane.errors import TwolaneError
from twolane.testing import LocalCluster

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
MIB = 1 << 20
GOOD_S = 1.0  # what others ask for in an attack takes tens of milliseconds without one


@dataclass
class Target:
    """A cluster under attack. `opened` is closed after each."""

    cluster: LocalCluster
    log: Path
    opened: list[Connection]

    async def http(self, n_connections: int, data: bytes = b"") -> list[Connection]:
        return await self._open(self.cluster.http_endpoint, n_connections, data)

    async def grpc(self, n_connections: int, data: bytes = b"") -> list[Connection]:
        return await self._open(self.cluster.endpoint, n_connections, data)

    async def _open(self, endpoint: str, n_connections: int, data: bytes) -> list[Connection]:
        host, _, port = endpoint.rpartition(":")
        opened = []
        for _ in range(n_connections):
            with suppress(OSError):
                opened.append(await asyncio.open_connection(host, int(port)))
                opened[-1][1].write(data)
        self.opened += opened
        return opened


@dataclass
class Harm:
    """Filled while an attack runs. Seconds of others' requests by door; memory in MiB."""

    before_mib: float = 0.0
    peak_mib: float = 0.0
    after_mib: float = 0.0
    cpu_s: float = 0.0
    grpc_s: list[float] = field(default_factory=list)
    http_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    log_bytes: int = 0

    @property
    def goodput_share(self) -> float:
        """Of what others asked for: what they got within a second."""
        took_s = self.grpc_s + self.http_s
        n_good = sum(each <= GOOD_S for each in took_s)
        return n_good / max(1, len(took_s) + len(self.failed))

    def figures(self) -> dict[str, Any]:
        """For a result."""
        return {
            "router_before_mib": round(self.before_mib, 1),
            "router_peak_mib": round(self.peak_mib, 1),
            "router_after_mib": round(self.after_mib, 1),
            "router_cpu_s": round(self.cpu_s, 1),
            "log_bytes": self.log_bytes,
            "others_answered": len(self.grpc_s) + len(self.http_s),
            "others_failed": len(self.failed),
            "others_goodput_share": round(self.goodput_share, 3),
        }

    def __str__(self) -> str:
        return (
            f"RSS {self.before_mib:.0f} -> {self.peak_mib:.0f} -> {self.after_mib:.0f} MiB, "
            f"CPU {self.cpu_s:.1f} s, log {self.log_bytes} B; others: gRPC {_show(self.grpc_s)}, "
            f"HTTP {_show(self.http_s)}, failed {len(self.failed)} {self.failed[:2]}; goodput "
            f"{self.goodput_share:.0%}"
        )


def router_of(cluster: LocalCluster) -> psutil.Process:
    return psutil.Process(cluster.pid("router-0"))


@asynccontextmanager
async def harm(cluster: LocalCluster, log: Path) -> AsyncIterator[Harm]:
    """Measure while the block runs, and two seconds after it."""
    router, seen = router_of(cluster), Harm()
    seen.before_mib = router.memory_info().rss / MIB
    cpu_s, log_bytes = sum(router.cpu_times()[:2]), _size(log)
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(_watch(router, seen))
        probes = [
            tasks.create_task(_offer(partial(_ask_grpc, cluster), seen, seen.grpc_s)),
            tasks.create_task(_offer(partial(_ask_http, cluster), seen, seen.http_s)),
        ]
        yield seen
        for probe in probes:
            probe.cancel()
        seen.cpu_s = sum(router.cpu_times()[:2]) - cpu_s
        seen.log_bytes = _size(log) - log_bytes
        await asyncio.sleep(2.0)
        watch.cancel()
    seen.after_mib = router.memory_info().rss / MIB


async def _watch(router: psutil.Process, seen: Harm) -> None:
    while True:
        seen.peak_mib = max(seen.peak_mib, router.memory_info().rss / MIB)
        await asyncio.sleep(0.02)


async def _offer(asks: Callable[[], Awaitable[None]], seen: Harm, took_s: list[float]) -> None:
    """A request each tenth of a second, however long the ones before take."""

    async def one() -> None:
        began = time.monotonic()
        try:
            await asks()
        except (OSError, TwolaneError) as error:
            seen.failed.append(f"{type(error).__name__} {error}"[:120])
        else:
            took_s.append(time.monotonic() - began)

    async with asyncio.TaskGroup() as tasks:
        while True:
            tasks.create_task(one())
            await asyncio.sleep(0.1)


async def _ask_grpc(cluster: LocalCluster) -> None:
    async with cluster.aclient() as client:  # a new connection, too
        await client.generate("Once", max_tokens=8, ignore_eos=True, timeout_s=5.0)


async def _ask_http(cluster: LocalCluster) -> None:
    await asyncio.to_thread(_post, cluster.http_endpoint)


def _post(endpoint: str) -> None:
    asked = urllib.request.Request(
        f"http://{endpoint}/v1/completions",
        json.dumps({"prompt": "a", "max_tokens": 4}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=5.0) as answer:
        answer.read()


def _size(log: Path) -> int:
    return log.stat().st_size


def _show(seconds: list[float]) -> str:
    if not seconds:
        return "none answered"
    ordered = sorted(seconds)
    p50_ms, max_ms = 1000 * ordered[len(ordered) // 2], 1000 * ordered[-1]
    return f"{len(seconds)} answered, p50 {p50_ms:.0f} max {max_ms:.0f} ms"
