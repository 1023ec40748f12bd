"""People with a real `kubectl`, at the fake API server."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.deploy.kubernetes.discovery import routes
from tests.deploy.kubernetes.fake_api import NAMESPACE, FakeApi
from tests.deploy.kubernetes.test_executor import running, until

KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="there is no kubectl")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a configuration nor a cache of somebody's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)


async def kubectl(api: FakeApi, line: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(KUBECTL), "--server", api.url, "--namespace", NAMESPACE, *line.split(),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


@pytest.mark.usefixtures("home")
async def test_what_kubectl_scales_is_set_back_and_what_it_deletes_is_heard_of() -> None:
    async with running(routes=routes) as world:
        api = world.api
        world.want([0], [0, 1])
        await until(lambda: world.sizes == (1, 2))
        told = await kubectl(api, "scale statefulset x-decode --replicas=4")
        assert told == "statefulset.apps/x-decode scaled\n"
        assert ("x-decode", 4) in api.patches, "by kubectl"
        await until(lambda: world.sizes == (1, 2))
        await until(lambda: len(api.pods) == 3)
        assert await kubectl(api, "get statefulset x-decode -o jsonpath={.spec.replicas}") == "2"
        (end,) = world.hear("x-decode-1", 7)
        before = world.uid("x-decode-1")
        await kubectl(api, "delete pod x-decode-1 --wait=false")
        await until(end.done)
        assert world.dead == {7: "x-decode-1"}
        await until(lambda: "x-decode-1" in api.pods and world.uid("x-decode-1") != before)
        listed = await kubectl(api, "get pods -o name")
        assert {*listed.split()} == {f"pod/{name}" for name in api.pods}
