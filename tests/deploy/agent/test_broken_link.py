"""A bug of ours in what hears a host ends the controller, with its traceback."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace

import grpc
import pytest

from tests.deploy.agent.test_agent_launcher import CREDENTIALS, QUICK, Hosts, hosts, spec
from tests.deploy.clusters import cluster_with, model_with
from tests.processes import is_alive
from twolane.deploy.agent.launcher import AgentLauncher
from twolane.deploy.agent.supervision import supervisor_over
from twolane.deploy.agent.term import Term, TermFile
from twolane.deploy.errors import NotProvenError
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.security.tls import TlsFilesError

__all__ = ["hosts"]


def breaks(launcher: AgentLauncher, name: str) -> None:
    def hear(message: object) -> None:
        raise KeyError("our bug")

    launcher._links[name]._hear = hear  # type: ignore[method-assign]


async def connected(hosts: Hosts) -> AgentLauncher:
    return await AgentLauncher.connected(hosts.specs(), CREDENTIALS, QUICK)


async def test_a_bug_ends_the_watch_of_a_host(hosts: Hosts) -> None:
    launcher = await connected(hosts)
    link = launcher._links["a"]
    async with asyncio.timeout(60):
        breaks(launcher, "a")
        with pytest.raises(KeyError, match="our bug"):
            await link.run()
        with pytest.raises(KeyError, match="our bug"):
            await launcher.watch()
        with pytest.raises(KeyError, match="our bug"):
            await launcher.close()


async def test_files_of_tls_that_cannot_be_read_now_are_read_again(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = await connected(hosts)
    link = launcher._links["a"]
    channel, n_fails = Credentials.channel, 2

    def fails_at_first(self: Credentials, endpoint: str, role: Role) -> grpc.aio.Channel:
        nonlocal n_fails
        if n_fails:
            n_fails -= 1
            raise TlsFilesError("tls_cert: x cannot be read")
        return channel(self, endpoint, role)

    monkeypatch.setattr(Credentials, "channel", fails_at_first)
    assert link._watching is not None
    link._watching.cancel()
    async with asyncio.timeout(60):
        while n_fails:
            await asyncio.sleep(0.01)
        await link.changed.wait()
    await launcher.close()


async def test_without_files_of_tls_a_host_is_asked_nothing_and_nothing_is_proven(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(self: Credentials, endpoint: str, role: Role) -> grpc.aio.Channel:
        raise TlsFilesError("tls_cert: x cannot be read")

    launcher = await connected(hosts)
    handle = await launcher.start(spec("a"))
    with monkeypatch.context() as without:
        without.setattr(Credentials, "channel", unread)
        with pytest.raises(NotProvenError, match="a: tls_cert: x cannot be read"):
            await launcher.fence(handle)
        with pytest.raises(NotProvenError, match="tls_cert: x cannot be read"):
            await launcher.say_off("a")
        await launcher.prove(handle.epoch)
    assert is_alive(handle.pid)
    await launcher.fence(handle)
    assert not is_alive(handle.pid)
    await launcher.close()


async def test_an_agent_that_answers_with_an_error_is_not_silent_without_a_word(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its disk is full, so that it cannot keep the term of a new controller."""

    def is_full(self: TermFile, term: Term) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    launcher = await connected(hosts)
    monkeypatch.setattr(TermFile, "check", is_full)
    watching = launcher._links["a"]._watching
    assert watching is not None
    watching.cancel()
    asked = "the agent could not answer /twolane.v1.AgentService/Watch"
    why = "a cannot be watched: the agent could not answer Watch (No space left on device)"
    async with asyncio.timeout(30):
        while caplog.messages.count(asked) < 3:
            await asyncio.sleep(0.01)
    assert sum(text.startswith(why) for text in caplog.messages) == 1
    await launcher.close()


async def test_a_bug_ends_the_controller_of_a_cluster_that_is_up(hosts: Hosts) -> None:
    launcher = await connected(hosts)
    cluster = cluster_with(model_with(name="ok"), decode=1, hosts=tuple(hosts.specs()))
    pool = replace(cluster.pools[0], host_names=("b",))
    cluster = replace(cluster, pools=(pool,))
    supervisor = await supervisor_over(launcher, cluster, lambda event: None)
    supervisor._attaches = True  # so that it does not wait for its router
    running = asyncio.create_task(supervisor.run(asyncio.Event(), asyncio.Event()))
    async with asyncio.timeout(60):
        while not supervisor.is_up:
            assert not running.done(), running
            await asyncio.sleep(0.01)
        breaks(launcher, "b")
        with pytest.raises(KeyError, match="our bug"):
            await running
