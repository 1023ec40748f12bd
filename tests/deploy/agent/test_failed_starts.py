"""Starts that fail."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.agent.test_agent import agent, client, spec
from tests.processes import is_alive
from twolane.deploy.process.evidence import read_evidence


async def test_process_that_does_not_serve_in_time_is_killed_and_its_start_fails(
    tmp_path: Path,
) -> None:
    async with agent(tmp_path, start_s=0.5) as server, client(server) as ours:
        assert (await ours.start(spec("slow"))).error == (
            "w did not serve within 0.5 s: it was killed"
        )
        assert not any(is_alive(each.pid) for each in read_evidence(tmp_path / "state"))


async def test_why_a_process_does_not_start_is_the_answer(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        assert (await ours.start(spec("refuse"))).error == "w: the model is square"
        assert not [*read_evidence(tmp_path / "state")] or not is_alive(
            next(read_evidence(tmp_path / "state")).pid
        )
