from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.deploy.clusters import model_with
from tests.processes import is_alive
from twolane.deploy.errors import StartError
from twolane.deploy.launch import process_launcher
from twolane.deploy.launch.process_launcher import ProcessLauncher
from twolane.deploy.spec.specs import RouterSpec, WorkerSpec, new_epoch

DUMMY = (sys.executable, str(Path(__file__).with_name("dummy_process.py")))


def spec(behaviour: str = "ok", worker_id: str = "w") -> WorkerSpec:
    return WorkerSpec(
        worker_id=worker_id,
        epoch=new_epoch(),
        roles=("decode",),
        model=model_with(model_dir="", name=behaviour),
        routers=(),
    )


@pytest.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[ProcessLauncher]:
    launcher = ProcessLauncher(tmp_path, command=DUMMY)
    yield launcher
    await launcher.close()


async def test_start_returns_when_the_process_serves(launcher: ProcessLauncher) -> None:
    wanted = spec()
    handle = await launcher.start(wanted)
    assert (handle.name, handle.epoch, handle.endpoint) == ("w", wanted.epoch, "127.0.0.1:1")
    assert is_alive(handle.pid)
    assert os.getpgid(handle.pid) == handle.pid


async def test_a_stop_comes_between_the_starts_of_many_workers(
    launcher: ProcessLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_spawned = 0

    def spawn(its: WorkerSpec) -> None:
        nonlocal n_spawned
        n_spawned += 1
        if n_spawned == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        raise StartError(its.name)

    monkeypatch.setattr(launcher, "_spawn", spawn)
    starts = [asyncio.create_task(launcher.start(spec(worker_id=f"w{i}"))) for i in range(200)]
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: [start.cancel() for start in starts])
    try:
        await asyncio.wait(starts, timeout=30)
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
    assert all(start.done() for start in starts)
    assert n_spawned < 20


async def test_a_worker_with_gpus_of_its_own_sees_no_others(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    await launcher.start(replace(spec("gpus"), devices=("2", "3")))
    await launcher.start(spec("gpus", worker_id="v"))
    assert "sees 2,3\n" in (tmp_path / "w.log").read_text()
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    assert f"sees {seen}\n" in (tmp_path / "v.log").read_text()


async def test_a_prepared_worker_waits_for_the_spec_that_it_is_started_with(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    launcher.prepare(replace(spec(), devices=("2",)))
    waiting = launcher._prepared["w"].popen.pid
    handle = await launcher.start(replace(spec("gpus"), devices=("2",)))
    assert handle.pid == waiting
    assert (tmp_path / "w.log").read_text() == "dummy worker gpus\nsees 2\n"
    again = await launcher.start(spec())
    assert again.pid != waiting


async def test_a_prepared_worker_that_is_never_started_ends_with_the_launcher(
    launcher: ProcessLauncher,
) -> None:
    launcher.prepare(spec())
    waiting = launcher._prepared["w"].popen.pid
    assert is_alive(waiting)
    await launcher.close()
    assert not is_alive(waiting)


async def test_a_worker_that_dies_while_it_waits_for_its_spec_is_a_start_error(
    launcher: ProcessLauncher,
) -> None:
    launcher.prepare(spec())
    os.kill(launcher._prepared["w"].popen.pid, signal.SIGKILL)
    with pytest.raises(StartError, match=r"^w ended before it was ready"):
        await launcher.start(spec())


async def test_a_process_is_not_dead_before_all_that_it_started_is(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    handle = await launcher.start(spec("parent"))
    rank = int((tmp_path / "w.log").read_text().rpartition("started ")[2])
    bystander = await launcher.start(spec(worker_id="v"))
    os.kill(handle.pid, signal.SIGKILL)  # it alone
    assert await launcher.wait_exit(handle) == "killed by SIGKILL"
    assert not is_alive(rank)
    again = await launcher.start(spec("parent"))
    os.kill(again.pid, signal.SIGTERM)
    await launcher.stop(again, grace_s=60)
    assert not is_alive(int((tmp_path / "w.log").read_text().rpartition("started ")[2]))
    assert is_alive(bystander.pid)


async def test_output_goes_to_a_log_that_survives_restarts(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    for _ in range(2):
        await launcher.fence(await launcher.start(spec()))
    router = RouterSpec(router_id="r", model=model_with(model_dir="", name="ok"))
    await launcher.start(router)
    assert (tmp_path / "w.log").read_text() == "dummy worker ok\n" * 2
    assert (tmp_path / "r.log").read_text() == "dummy router ok\n"


async def test_a_crash_at_start_raises_with_the_end_of_the_log(launcher: ProcessLauncher) -> None:
    with pytest.raises(StartError, match=r"(?s)w ended before it was ready.*no such luck"):
        await launcher.start(spec("crash"))


async def test_a_refusal_at_start_raises_with_the_process_own_words(
    launcher: ProcessLauncher,
) -> None:
    with pytest.raises(StartError, match=r"^w: the model is square$"):
        await launcher.start(spec("refuse"))


async def test_a_log_folder_that_a_cleaner_took_is_made_again(tmp_path: Path) -> None:
    launcher = ProcessLauncher(tmp_path / "logs", command=DUMMY)
    for _ in range(2):
        await launcher.fence(await launcher.start(spec()))
        shutil.rmtree(tmp_path / "logs")
    await launcher.close()


async def test_what_the_system_refuses_is_a_start_error(tmp_path: Path) -> None:
    launcher = ProcessLauncher(tmp_path, command=["/no/such/program"])
    with pytest.raises(StartError, match=r"^w: .*No such file or directory"):
        await launcher.start(spec())


async def test_a_start_without_a_file_descriptor_left_is_a_start_error(
    launcher: ProcessLauncher,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(StartError, match=r"^w: .*Too many open files"):
            await launcher.start(spec())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await launcher.start(spec())


async def test_a_cancelled_start_leaves_no_process(
    launcher: ProcessLauncher, tmp_path: Path
) -> None:
    others = set(psutil.Process().children())
    starting = asyncio.create_task(launcher.start(spec("slow")))
    async with asyncio.timeout(60):
        while not (tmp_path / "w.log").exists() or "slow" not in (tmp_path / "w.log").read_text():
            await asyncio.sleep(0.02)
    (child,) = set(psutil.Process().children()) - others
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not is_alive(child.pid)


async def test_wait_exit_tells_how_it_died(launcher: ProcessLauncher) -> None:
    handle = await launcher.start(spec())
    waiting = asyncio.create_task(launcher.wait_exit(handle))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    os.kill(handle.pid, signal.SIGKILL)
    assert await waiting == "killed by SIGKILL"


async def test_fence_returns_only_when_the_process_is_dead(launcher: ProcessLauncher) -> None:
    handle = await launcher.start(spec("stubborn"))
    os.kill(handle.pid, signal.SIGSTOP)  # a stopped process dies of SIGKILL all the same
    await launcher.fence(handle)
    assert not is_alive(handle.pid)
    await launcher.fence(handle)


async def test_stop_asks_first_and_kills_after_the_grace(launcher: ProcessLauncher) -> None:
    polite, stubborn = await launcher.start(spec()), await launcher.start(spec("stubborn", "s"))
    await launcher.stop(polite, grace_s=60)
    assert await launcher.wait_exit(polite) == "killed by SIGTERM"
    await launcher.stop(stubborn, grace_s=0.2)
    assert await launcher.wait_exit(stubborn) == "killed by SIGKILL"
    await launcher.stop(stubborn, grace_s=60)


async def test_two_incarnations_are_two_handles(launcher: ProcessLauncher) -> None:
    first = await launcher.start(spec())
    await launcher.fence(first)
    second = await launcher.start(replace(spec(), epoch=new_epoch()))
    assert first.epoch != second.epoch
    await launcher.fence(first)
    assert is_alive(second.pid)


async def test_an_incarnation_that_still_runs_is_dead_before_the_next_starts(
    launcher: ProcessLauncher,
) -> None:
    first = await launcher.start(spec("stubborn"))
    second = await launcher.start(replace(spec("stubborn"), epoch=new_epoch()))
    assert not is_alive(first.pid)
    assert is_alive(second.pid)
    assert await launcher.wait_exit(first) == "was replaced"
    await launcher.stop(first, grace_s=60)
    assert is_alive(second.pid)
    assert len(launcher._processes) == 1


async def test_close_leaves_nothing(tmp_path: Path) -> None:
    launcher = ProcessLauncher(tmp_path, command=DUMMY)
    handles = [await launcher.start(spec("stubborn", f"w{i}")) for i in range(3)]
    await launcher.close()
    await launcher.close()
    assert not [h for h in handles if is_alive(h.pid)]


def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from twolane.deploy.launch.process_launcher import ProcessLauncher\n"
        "from twolane.deploy.spec.specs import WorkerSpec\n"
        "from tests.deploy.clusters import model_with\n"
        "async def main():\n"
        "    launcher = ProcessLauncher(Path(sys.argv[1]), command=sys.argv[2:])\n"
        "    model = model_with(model_dir='', name='stubborn')\n"
        "    w = WorkerSpec(worker_id='w', epoch=1, roles=(), model=model, routers=())\n"
        "    print((await launcher.start(w)).pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), *DUMMY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    end = time.monotonic() + 60
    while is_alive(child):
        assert time.monotonic() < end, "an orphan"
        time.sleep(0.01)


def test_a_process_can_share_the_fate_of_one_that_is_not_its_parent() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        code = "import sys, time; from twolane.deploy.process.parent_death import die_with\n"
        code += "die_with(int(sys.argv[1])); print('waits', flush=True); time.sleep(60)"
        command = [sys.executable, "-c", code, str(other.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"waits\n"
            assert process.poll() is None
            other.kill()
            assert process.wait(60) == -signal.SIGKILL


def held() -> tuple[int, int]:
    """How many descriptors, and children in any state, this process has."""
    us = psutil.Process()
    return us.num_fds(), len(us.children())


async def test_a_start_without_a_descriptor_for_its_process_leaves_nothing(
    launcher: ProcessLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    before = held()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", no_descriptor)
        with pytest.raises(StartError, match=r"^w: .*Too many open files"):
            await launcher.start(spec())
    assert held() == before


async def test_a_start_whose_spec_cannot_be_sent_leaves_nothing(
    launcher: ProcessLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    before = held()
    with monkeypatch.context() as patch:
        patch.setattr(process_launcher, "_send", cannot)
        with pytest.raises(OSError, match="Cannot allocate"):
            await launcher.start(spec())
    assert held() == before
