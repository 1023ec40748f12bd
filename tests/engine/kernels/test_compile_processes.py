"""Kernels are compiled by forked processes, each once on a machine, and none is lost by them."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

from triton import knobs
from triton.runtime._async_compile import active_mode

from tests.until import wait_until
from twolane.engine.kernels import compile_ahead, compile_processes
from twolane.engine.kernels.compile_ahead import CompileAhead
from twolane.engine.kernels.compile_processes import Compilers, Wanted
from twolane.engine.kernels.launch import Take


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "triton")
        yield tmp_path


class Compiler:
    """Puts an empty kernel into Triton's cache, and notes which process did."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "compiled"

    def __call__(self, key: str) -> Any:
        if not Wanted(key, object).is_cached:  # as Triton's looks itself
            with self.log.open("a") as log:
                log.write(f"{key} {os.getpid()}\n")
            manager = compile_processes._cache_of(key)
            manager.put_group("k.json", {"k.cubin": manager.put(b"", "k.cubin")})
        return SimpleNamespace(run=None, src=key, metadata=None)

    def wanted(self, *keys: str) -> list[Wanted]:
        return [Wanted(key, partial(self, key)) for key in keys]

    @property
    def compiled(self) -> dict[str, list[int]]:
        """The processes that compiled each."""
        found: dict[str, list[int]] = {}
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            key, pid = line.split()
            found.setdefault(key, []).append(int(pid))
        return found


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)


def lock(key: str) -> int:
    """As another worker's process has it while it compiles."""
    fd = os.open(compile_processes._cache_of(key).lock_path, os.O_CREAT | os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def release(fd: int) -> None:
    """As when that process ends. Forks of ours have the descriptor, too."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def test_two_workers_compile_each_kernel_once_in_processes_of_their_own(compiler: Compiler) -> None:
    wanted = compiler.wanted(*map(str, range(30)))
    with Compilers(wanted, 3) as ours, Compilers(wanted, 3) as theirs:
        told = [sorted(its.done()) for its in (ours, theirs)]
    assert told == [[*range(30)]] * 2
    assert Counter(map(len, compiler.compiled.values())) == {1: 30}
    assert os.getpid() not in {pid for pids in compiler.compiled.values() for pid in pids}


def test_a_kernel_that_another_worker_compiles_is_left_for_last_and_not_compiled_again(
    compiler: Compiler,
) -> None:
    wanted = compiler.wanted("theirs", "ours")
    fd = lock("theirs")
    with Compilers(wanted, 1) as compilers:
        done = compilers.done()
        assert next(done) == 1
        compiler("theirs")
        release(fd)
        assert [*done] == [0]
    assert compiler.compiled["theirs"] == [os.getpid()]


def test_a_kernel_whose_other_worker_died_is_compiled_after_all(compiler: Compiler) -> None:
    fd = lock("theirs")
    with Compilers(compiler.wanted("theirs", "ours"), 1) as compilers:
        done = compilers.done()
        assert next(done) == 1
        release(fd)
        assert [*done] == [0]
    assert len(compiler.compiled["theirs"]) == 1


def test_what_a_killed_process_or_an_error_leaves_is_not_told(compiler: Compiler) -> None:
    def fails() -> None:
        raise ValueError("registers")

    def dies() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    wanted = [*compiler.wanted("a"), Wanted("b", fails), *compiler.wanted("c"), Wanted("d", dies)]
    with Compilers(wanted, 1) as compilers:
        assert [*compilers.done()] == [0, 2]


def hangs() -> None:
    threading.Event().wait()


@pytest.mark.parametrize("silent_after_s", [0.01, 60.0])
def test_no_process_is_left_whatever_it_does(silent_after_s: float) -> None:
    with Compilers([Wanted("a", hangs), Wanted("b", hangs)], 2) as compilers:
        pids = list(compilers.pids)
        if silent_after_s < 1:
            assert [*compilers.done(silent_after_s)] == []
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, 0)


def test_a_process_without_its_parent_compiles_nothing_more(compiler: Compiler) -> None:
    with pytest.raises(SystemExit):
        compile_processes._compile(
            compiler.wanted("a")[0], 0, -1, parent=os.getpid(), wait=False
        )  # our parent is another
    assert compiler.compiled == {}


def test_a_cache_without_folders_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_processes, "get_cache_manager", lambda key: object())
    assert Wanted("a", object).is_cached


class Kernel:
    """As Triton's, which hands its compiler to the active mode's executor."""

    def __init__(self, compile_one: Callable[[str], Any]) -> None:
        self._compile_one = compile_one

    def warmup(self, key: str, *, grid: tuple[int, ...]) -> None:
        mode = active_mode.get()
        assert mode is not None
        mode.submit(key, partial(self._compile_one, key), lambda kernel: None)


def dry_run(compile_one: Callable[[str], Any], *keys: str) -> Callable[[Take], None]:
    def launches(take: Take) -> None:
        for key in keys:
            take(Kernel(compile_one), (1,), key)

    return launches


@pytest.fixture
def launchers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A driver that notes for which kernels it built a launcher, in which process."""
    log = tmp_path / "launchers"

    def build(key: str, metadata: Any) -> None:
        with log.open("a") as file:
            file.write(f"{key} {os.getpid()}\n")

    driver = SimpleNamespace(active=SimpleNamespace(launcher_cls=build))
    monkeypatch.setattr(compile_ahead, "driver", driver)
    return log


def test_what_is_cached_is_loaded_and_the_rest_compiled_by_processes_first(
    compiler: Compiler, launchers: Path
) -> None:
    compiler("old")
    counts: list[tuple[int, int]] = []

    def tell(done: int, of: int) -> None:
        counts.append((done, of))
        wait_until(ahead._all.done)  # type: ignore[union-attr]  # before the next look

    with CompileAhead(dry_run(compiler, "old", "new", "newer"), processes=2) as ahead:
        ahead.wait(tell)
    assert counts[-1] == (3, 3)
    own = os.getpid()
    by_us = {key: pids == [own] for key, pids in compiler.compiled.items()}
    assert by_us == {"old": True, "new": False, "newer": False}
    built = dict(line.split() for line in launchers.read_text().splitlines())
    assert {key: pid == str(own) for key, pid in built.items()} == {"new": False, "newer": False}


def test_processes_inherit_no_lock_of_threads_that_load(
    compiler: Compiler, launchers: Path
) -> None:
    """As Triton has one for each function while it computes a key."""
    is_held = threading.Lock()

    def is_compiled() -> bool:
        return Wanted("new", object).is_cached

    def compile_one(key: str) -> Any:
        assert is_held.acquire(timeout=10)
        try:
            while key == "old" and not is_compiled() and time.monotonic() < end_s:
                time.sleep(0.001)
            return compiler(key)
        finally:
            is_held.release()

    compiler("old")
    end_s = time.monotonic() + 0.3  # how long it is held for, unless all is well
    with CompileAhead(dry_run(compile_one, "old", "new"), processes=1, threads=1) as ahead:
        ahead.wait(lambda done, of: None)
    assert compiler.compiled["new"] != [os.getpid()]


def test_what_a_compiler_raises_in_a_process_is_raised_to_who_waits(
    compiler: Compiler, launchers: Path
) -> None:
    def fails(key: str) -> Any:
        if key == "bad":
            raise ValueError("registers")
        return compiler(key)

    ahead = CompileAhead(dry_run(fails, "good", "bad"), processes=2)
    with ahead, pytest.raises(ValueError, match="registers"):
        ahead.wait(lambda done, of: None)


def test_processes_are_ended_when_loading_fails(launchers: Path) -> None:
    ahead = CompileAhead(dry_run(lambda key: hangs(), "a", "b"), processes=2)

    def fail() -> None:
        with ahead:
            wait_until(lambda: ahead._compilers is not None and len(ahead._compilers.pids) == 2)
            raise MemoryError

    with pytest.raises(MemoryError):
        fail()
    assert ahead._compilers is not None
    assert ahead._compilers.pids == []
