"""What is desired outlives its controller, on the hosts."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.agent.test_agent_launcher import CREDENTIALS, QUICK, Hosts, launched
from tests.until import until
from twolane.deploy.agent.kept import KeptDesired, latest, parsed
from twolane.deploy.agent.launcher import AgentLauncher
from twolane.deploy.controller.desired import Desired, InPod, Pin, Removal, Seat
from twolane.deploy.errors import DeposedError, RefusedError, StartError
from twolane.deploy.spec.spec_json import to_json
from twolane.v1 import agent_pb2

WANTED = Desired(
    revision=3,
    pins=(Pin(pool="decode", n=2, left_s=60.0),),
    cordoned=("b",),
    seats=(Seat(name="decode-0", pool="decode", host="a", devices=("0", "1")),),
    removals=(Removal(name="decode-0", hand_over=True),),
)
POD = InPod(name="decode-0", epoch=7, pid=1, host="b", boot_id="first")


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    hosts = Hosts(tmp_path)
    for name in ("a", "b"):
        await hosts.start(name)
    yield hosts
    await hosts.stop_all()


async def test_the_next_controller_finds_what_this_one_wanted(hosts: Hosts) -> None:
    async with launched(hosts) as first:
        assert first.desired is None
        await first.save(WANTED)
    for name in ("a", "b"):
        await hosts.stop(name)
        await hosts.start(name)
    async with launched(hosts) as second:
        assert second.desired == WANTED


async def test_a_host_that_was_away_does_not_bring_old_wishes_back(hosts: Hosts) -> None:
    async with launched(hosts) as first:
        await first.save(WANTED)
    await hosts.stop("b")
    async with launched(hosts) as second:
        await second.save(Desired(revision=1))
    await hosts.start("b")
    async with launched(hosts) as third:
        assert third.desired == Desired(revision=1)


async def test_a_host_that_was_away_does_not_bring_old_pods_back(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with launched(hosts) as first:
        await first.save(WANTED)
        await hosts.lose("a", first)
        monkeypatch.setattr(first._links["b"], "in_pods", lambda: [POD])
        await first._kept_on_hosts.save_again()
    await hosts.start("a")
    async with launched(hosts) as second:
        assert second.desired is not None
        assert second.desired.in_pods == (POD,)


async def test_pods_that_no_host_could_keep_are_kept_as_soon_as_one_answers(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with launched(hosts) as first:
        await first.save(WANTED)
        for name in ("a", "b"):
            await hosts.lose(name, first)
        b = first._links["b"]
        monkeypatch.setattr(b, "in_pods", lambda: [POD])
        await first._kept_on_hosts.save_again()
        await hosts.start("b")
        await until(lambda: b.kept is b.desired)
    async with launched(hosts) as second:
        assert second.desired is not None
        assert second.desired.in_pods == (POD,)


async def test_a_controller_that_was_replaced_can_keep_nothing(hosts: Hosts) -> None:
    async with launched(hosts) as first, launched(hosts) as second:
        await second.save(WANTED)
        with pytest.raises(DeposedError):
            await first.save(Desired(revision=9))
    async with launched(hosts) as third:
        assert third.desired == WANTED


async def test_what_is_desired_ends_with_the_cluster(hosts: Hosts) -> None:
    async with launched(hosts) as first:
        await first.save(WANTED)
    async with launched(hosts) as second:
        await second.ends()
    async with launched(hosts) as third:
        assert third.desired is None


async def test_a_worker_that_comes_up_in_a_pod_at_the_end_brings_nothing_back(hosts: Hosts) -> None:
    async with launched(hosts) as first:
        await first.save(WANTED)
        await first.ends()
        await first._kept_on_hosts.save_again()
    async with launched(hosts) as second:
        assert second.desired is None


async def test_nothing_is_accepted_that_no_host_keeps(hosts: Hosts) -> None:
    async with launched(hosts) as launcher:
        for name in ("a", "b"):
            await hosts.stop(name)
        with pytest.raises(RefusedError, match="no host answers that could keep it"):
            await launcher.save(WANTED)


def test_the_latest_is_of_the_highest_term_then_of_the_highest_revision(tmp_path: Path) -> None:
    found = [
        agent_pb2.Desired(term=term, revision=revision, json=to_json(Desired(revision=revision)))
        for term, revision in ((1, 9), (2, 1), (2, 2))
    ]
    best = parsed(latest(found))
    assert best is not None
    assert best.revision == 2
    assert parsed(latest([*found, agent_pb2.Desired(term=3)])) is None
    kept = KeptDesired(tmp_path / "desired")
    for value in (found[1], found[2], found[0]):
        kept.write(value)
    assert kept.value == KeptDesired(tmp_path / "desired").value == found[2]


@pytest.mark.parametrize("text", ["5", "null", "{}", '["x", "y", 5]', "not JSON"])
def test_a_file_that_cannot_be_read_is_a_value_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "desired").write_text(text)
    with pytest.raises(ValueError, match=r"."):
        KeptDesired(tmp_path / "desired")


async def test_a_host_without_memory_learns_what_is_desired_as_soon_as_it_is_up(
    hosts: Hosts, tmp_path: Path
) -> None:
    async def until_it_knows(name: str) -> None:
        async with asyncio.timeout(60):
            while not (tmp_path / name / "desired").exists():
                await asyncio.sleep(0.01)

    async def renew(name: str) -> None:
        await hosts.stop(name)
        shutil.rmtree(tmp_path / name)
        await hosts.start(name)

    async with launched(hosts) as first:
        await first.save(WANTED)
        await renew("a")
        await until_it_knows("a")
    await renew("b")
    async with launched(hosts) as second:  # which wants nothing else
        assert second.desired == WANTED
        await until_it_knows("b")
        await renew("a")
        await until_it_knows("a")
    async with launched(hosts) as third:
        assert third.desired == WANTED


async def test_a_silent_host_is_waited_for_while_no_other_knows_what_is_desired(
    hosts: Hosts, tmp_path: Path
) -> None:
    async with launched(hosts) as first:
        await first.save(WANTED)
    await hosts.stop("a")
    shutil.rmtree(tmp_path / "a")
    await hosts.start("a")
    await hosts.stop("b")
    patient = replace(QUICK, remember_s=60.0)
    connecting = asyncio.create_task(AgentLauncher.connected(hosts.specs(), CREDENTIALS, patient))
    done, _ = await asyncio.wait([connecting], timeout=0.5)
    assert not done
    await hosts.start("b")
    second = await connecting
    assert second.desired == WANTED
    await second.close()


async def rewrite(
    hosts: Hosts, folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """What both hosts keep, while they are stopped."""
    for name in ("a", "b"):
        await hosts.stop(name)
        path = folder / name / "desired"
        term, revision, text = json.loads(path.read_text())
        path.write_text(json.dumps([term, revision, json.dumps(change(json.loads(text)))]))
        await hosts.start(name)


async def test_a_controller_goes_on_with_what_a_later_version_has_wanted(
    hosts: Hosts, tmp_path: Path
) -> None:
    async with launched(hosts) as first:
        await first.save(WANTED)
    await rewrite(hosts, tmp_path, lambda kept: {**kept, "later": [{"its": 1}]})
    async with launched(hosts) as second:
        assert second.desired == WANTED


async def test_what_cannot_be_read_at_all_is_said_and_nothing_is_started(
    hosts: Hosts, tmp_path: Path
) -> None:
    async with launched(hosts) as first:
        await first.save(WANTED)
    await rewrite(hosts, tmp_path, lambda kept: {"seats": "all"})
    with pytest.raises(StartError, match=r"written by another version: Desired\.seats is 'all'"):
        await AgentLauncher.connected(hosts.specs(), CREDENTIALS, QUICK)
