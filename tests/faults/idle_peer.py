"""As many idle gRPC connections of one address as the door takes, and what others get meanwhile:
`python -m tests.faults.idle_peer FOLDER` where 192.0.2.1 is an address of this machine."""

from __future__ import annotations

import asyncio
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests import h2
from tests.faults.attacker import harm
from twolane.router.config import GrpcDoorConfig
from twolane.testing import LocalCluster, start_local

ADDRESS = "192.0.2.1"


async def idle(cluster: LocalCluster) -> None:
    port = int(cluster.endpoint.rpartition(":")[2])

    async def one() -> None:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(ADDRESS, port, local_addr=(ADDRESS, 0))
            writer.write(h2.hello())
            await h2.answer_pings(reader, writer)
            writer.close()

    tasks = []
    for number in range(GrpcDoorConfig().connections):
        tasks.append(asyncio.create_task(one()))
        if not number % 50:
            await asyncio.sleep(0.01)
    await asyncio.sleep(15.0)
    assert sum(not task.done() for task in tasks) == GrpcDoorConfig().connections_per_peer
    for task in tasks:
        task.cancel()


async def main(folder: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    options: dict[str, Any] = {"host": "0.0.0.0", "insecure": True, "log_dir": folder}
    with start_local(prefill=1, decode=1, engine="fake", **options) as cluster:
        async with harm(cluster, folder / "router-0.log") as seen:
            await idle(cluster)
    print(seen)
    assert seen.goodput_share >= 0.9
    assert seen.peak_mib - seen.before_mib < 100


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
