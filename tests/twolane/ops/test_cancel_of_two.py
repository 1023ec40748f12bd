"""A label that two tenants use at the same time names neither of their requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

from click.testing import CliRunner, Result

from tests.router.doors.test_api_keys import Doors, doors
from tests.until import until
from twolane.cli.app import app
from twolane.router.config import ServerConfig


async def run(its: Doors, *line: str) -> Result:
    where = ("--endpoint", its.server.admin_address)
    return await asyncio.to_thread(CliRunner().invoke, app, [*line, *where])


async def test_a_label_of_two_tenants_cancels_nobodys_request(tmp_path: Path) -> None:
    async def answer(key: str) -> None:
        async with its.client(key) as client:
            async for _ in client.stream(token_ids=[1], max_tokens=1900, request_id="job-1"):
                pass

    place = ServerConfig(
        admin_socket=str(tmp_path / "a"), metrics_port=None, http=None, stop_grace_s=0.2
    )
    async with doors(tmp_path, step_s=0.05, server_config=place) as its:
        answers = [asyncio.create_task(answer(key)) for key in (its.red, its.blue)]
        await until(lambda: its.server.router.status().requests_by_state.get("running") == 2)
        done = await run(its, "requests", "cancel", "job-1", "--yes")
        n_cancelled = its.server.router.status().counters["cancelled"]
        for each in answers:
            each.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
        assert (done.exit_code, n_cancelled) == (2, 0), done.output
        assert "red" in done.output
        assert "blue" in done.output
