import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.clusters import model_with
from tests.deploy.test_launcher_process import DUMMY, spec
from twolane.deploy.launch.process_launcher import ProcessLauncher
from twolane.deploy.process.cpu_share import ROUTER_NICE, try_prefer
from twolane.deploy.spec.specs import RouterSpec

ROUTER = RouterSpec(router_id="r", model=model_with(model_dir="", name="ok"))
OURS = os.getpriority(os.PRIO_PROCESS, 0)


@pytest.fixture
def leader() -> Iterator[int]:
    """The id of a process that leads a session of its own, and waits."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process.pid
        process.communicate()


def may_prefer() -> bool:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            os.setpriority(os.PRIO_PROCESS, process.pid, ROUTER_NICE)
        except PermissionError:
            return False
        finally:
            process.communicate()
    return True


def test_process_that_is_preferred_has_its_niceness_and_so_has_its_session(leader: int) -> None:
    may = may_prefer()
    assert try_prefer(leader) == may
    assert os.getpriority(os.PRIO_PROCESS, leader) == (ROUTER_NICE if may else OURS)
    group = Path(f"/proc/{leader}/autogroup")
    if may and group.exists() and group.read_text():
        assert group.read_text().split()[-1] == str(ROUTER_NICE)


def test_who_may_not_prefer_a_process_leaves_it_as_it_is(
    leader: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(which: int, pid: int, nice: int) -> None:
        raise PermissionError("not root")

    monkeypatch.setattr(os, "setpriority", refuse)
    assert not try_prefer(leader)
    assert os.getpriority(os.PRIO_PROCESS, leader) == OURS


def test_process_that_has_ended_is_not_preferred() -> None:
    with subprocess.Popen(["true"], start_new_session=True) as process:
        process.wait()
    assert not try_prefer(process.pid)


async def test_launcher_prefers_routers_and_no_workers(tmp_path: Path) -> None:
    launcher = ProcessLauncher(tmp_path, command=DUMMY)
    try:
        worker = await launcher.start(spec())
        router = await launcher.start(ROUTER)
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == OURS
        wanted = ROUTER_NICE if may_prefer() else OURS
        assert os.getpriority(os.PRIO_PROCESS, router.pid) == wanted
    finally:
        await launcher.close()
