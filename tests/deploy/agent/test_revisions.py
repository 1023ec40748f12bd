"""Hosts say whether they can load a new revision before anything is drained."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import pytest

from tests.deploy.agent.test_agent_launcher import Hosts, hosts, launched, spec
from tests.deploy.clusters import model_with
from tests.deploy.revisions import another_revision
from twolane.deploy.agent.host_link import HostState
from twolane.deploy.agent.revisions import fit_on_hosts
from twolane.deploy.bundled import model_path
from twolane.deploy.errors import StartError
from twolane.deploy.spec.revision import Fit, read_revision
from twolane.deploy.spec.specs import WorkerSpec
from twolane.v1 import agent_pb2

__all__ = ["hosts"]
MODEL = model_with(model_dir=model_path())
BOTH = {"a", "b"}


async def test_agents_read_the_directory_and_a_silent_host_knows_nothing(
    hosts: Hosts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    new = str(another_revision(tmp_path_factory.mktemp("revision") / "new"))
    async with launched(hosts) as launcher:
        fit = await launcher.fit_of(MODEL, new, loads=BOTH, others=BOTH)
        assert fit == Fit(fingerprint=fit.fingerprint)
        assert len(fit.fingerprint) == 64
        nowhere = await launcher.fit_of(MODEL, "/nowhere", loads=BOTH, others=BOTH)
        missing = "there is no directory /nowhere"
        assert nowhere.why_not == f"a: {missing}; b: {missing}"
        await hosts.lose("b", launcher)
        silent = await launcher.fit_of(MODEL, new, loads=BOTH, others=BOTH)
        assert silent.why_not == f"b: it is silent: nobody knows whether it has {new}"
        spare = await launcher.fit_of(MODEL, new, loads={"a"}, others=BOTH)
        assert spare == replace(fit, unchecked=f"whether there is {new} on b")


async def test_a_host_is_asked_again_before_a_worker_of_the_revision_starts_there(
    hosts: Hosts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    new = str(another_revision(tmp_path_factory.mktemp("revision") / "new"))
    other = str(another_revision(tmp_path_factory.mktemp("revision") / "other", seed=2))
    async with launched(hosts) as launcher:
        fit = await launcher.fit_of(MODEL, new, loads={"a"}, others=set())

        def of(model_dir: str, fingerprint: str = fit.fingerprint) -> WorkerSpec:
            model = replace(MODEL, config=replace(MODEL.config, model_name="ok")).at(model_dir)
            return replace(spec("b"), model=model, fingerprint=fingerprint)

        with pytest.raises(StartError, match="cannot start on b: there is no directory /nowhere"):
            await launcher.start(of("/nowhere"))
        with pytest.raises(StartError, match="it cannot start on b: it has other files in"):
            await launcher.start(of(other))
        assert launcher.running() == set()
        handle = await launcher.start(of(new))
        assert handle.host_name == "b"
        await launcher.fence(handle)
        handle = await launcher.start(of(other, fingerprint=""))
        await launcher.fence(handle)


class Link:
    """A host that has only what is below `root`; None: its agent fails with `code`."""

    state = HostState.UP

    def __init__(self, root: Path, code: grpc.StatusCode | None = None) -> None:
        self._root = root
        self._code = code

    def client(self) -> Self:
        return self

    async def read_revision(
        self, request: agent_pb2.ReadRevisionRequest
    ) -> agent_pb2.ReadRevisionResponse:
        if self._code is not None:
            no_metadata = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(self._code, no_metadata, no_metadata, "busy")
        its = read_revision(
            Path(request.model_dir),
            str(self._root / request.revision_dir.lstrip("/")),
            with_weights=not request.without_weights,
        )
        return agent_pb2.ReadRevisionResponse(why_not=its.why_not, fingerprint=its.fingerprint)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


async def asked(links: Mapping[str, Any], others: set[str] | None = None) -> Fit:
    loads = links.keys() - (others or set())
    return await fit_on_hosts(links, MODEL, "/v2", loads=loads, others=links.keys())


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Of two hosts that have the same files."""
    first = another_revision(tmp_path / "a/v2").parent
    shutil.copytree(first, tmp_path / "b")
    return {"a": first, "b": tmp_path / "b"}


async def test_hosts_with_different_weights_are_refused(folders: dict[str, Path]) -> None:
    links = {name: Link(root) for name, root in folders.items()}
    assert (await asked(links)).why_not == ""
    weights = folders["b"] / "v2/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert "hosts have different files in /v2" in (await asked(links)).why_not


async def test_former_agents_are_named_and_failing_ones_are_refused(
    folders: dict[str, Path],
) -> None:
    former = {"a": Link(folders["a"]), "b": Link(folders["b"], grpc.StatusCode.UNIMPLEMENTED)}
    assert (await asked(former)).unchecked == "whether there is /v2 on b"
    failing = {"a": Link(folders["a"]), "b": Link(folders["b"], grpc.StatusCode.DEADLINE_EXCEEDED)}
    why_not = "b: it does not say whether it has /v2: busy"
    assert (await asked(failing)).why_not == why_not


async def test_a_failing_host_that_need_not_load_it_is_named_and_refuses_nothing(
    folders: dict[str, Path],
) -> None:
    failing = {"a": Link(folders["a"]), "b": Link(folders["b"], grpc.StatusCode.DEADLINE_EXCEEDED)}
    fit = await asked(failing, others={"b"})
    assert (fit.why_not, fit.unchecked) == ("", "whether there is /v2 on b")


async def test_a_host_that_falls_silent_while_it_reads_is_not_waited_for(
    folders: dict[str, Path],
) -> None:
    class Hangs(Link):
        async def read_revision(self, request: agent_pb2.ReadRevisionRequest) -> Any:
            self.state = HostState.SILENT
            await asyncio.Event().wait()

    links = {"a": Link(folders["a"]), "b": Hangs(folders["b"])}
    async with asyncio.timeout(60.0):
        fit = await asked(links)
    assert fit.why_not == "b: it is silent: nobody knows whether it has /v2"
