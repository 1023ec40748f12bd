from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.deploy.clusters import changed, model_with
from twolane.deploy.bundled import model_path
from twolane.deploy.errors import StartError
from twolane.deploy.process.engine_host import open_engine
from twolane.deploy.process.host_memory import RESERVE_BYTES, available_bytes, check_room

GIB = 1 << 30
HUGE = model_with(model_dir=str(model_path()), name="m", device="cpu", kv_bytes=999_999_999_999_999)


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    """A /proc with 8 GiB available, and the root of cgroups that say nothing; we are in /a/b."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroups / "a/b").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 99999999 kB\nMemAvailable:    8388608 kB\nHuge: 0\n")
    (proc / "self/cgroup").write_text("1:name=systemd:/elsewhere\n0::/a/b\n")
    return proc, cgroups


def limit(group: Path, most: str, current: int, cached: int = 0) -> None:
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{current}\n")
    (group / "memory.stat").write_text(f"anon 5\nactive_file {cached}\ninactive_file 0\n")


def test_what_the_machine_has_bounds_a_pool(machine: tuple[Path, Path]) -> None:
    assert available_bytes(*machine) == 8 * GIB
    check_room(8 * GIB - RESERVE_BYTES, *machine)
    with pytest.raises(MemoryError, match=r"a pool of 8\.00 GiB; 8\.00 GiB of memory are avail"):
        check_room(8 * GIB, *machine)


def test_the_tightest_cgroup_around_us_bounds_it_further(machine: tuple[Path, Path]) -> None:
    _, cgroups = machine
    limit(cgroups / "a/b", "max", 7 * GIB)
    assert available_bytes(*machine) == 8 * GIB
    limit(cgroups / "a", str(4 * GIB), 3 * GIB)
    assert available_bytes(*machine) == GIB
    limit(cgroups / "a", str(4 * GIB), 3 * GIB, cached=2 * GIB)  # files that it can let go
    assert available_bytes(*machine) == 3 * GIB
    limit(cgroups, str(2 * GIB), 3 * GIB)  # a container's own root; and it is over its limit
    assert available_bytes(*machine) == 0


def test_where_nobody_says_what_there_is_nothing_is_refused(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) is None
    check_room(1 << 60, tmp_path, tmp_path)


def test_here_something_is_available() -> None:
    available = available_bytes()
    assert available is not None
    assert available > 0


@pytest.mark.parametrize("engine", ["model", "fake"])
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_pool_larger_than_the_machine_is_refused_before_it_is_allocated(
    engine: str, is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(*given: object) -> None:
        raise AssertionError(f"allocated: {given}")

    monkeypatch.setattr("twolane.deploy.process.engine_host.create_pool_memory", allocate)
    monkeypatch.setattr("twolane.engine.load.load_engine", allocate)
    monkeypatch.setattr("twolane.deploy.process.engine_host.FakeEngine", allocate)
    with (
        pytest.raises(StartError, match=r"a pool of 931322\.\d\d GiB; .* give fewer --pages or"),
        open_engine(replace(HUGE, engine=engine), name="w", is_shared=is_shared),
    ):
        pass


def test_the_pools_of_all_ranks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    monkeypatch.setattr("twolane.deploy.process.engine_host.check_room", checked.append)
    monkeypatch.setattr("twolane.engine.load.load_engine", lambda *_, **__: 1 / 0)
    for ranks in (1, 2):
        spec = changed(HUGE, kv_bytes=None, n_pages=8, tensor_parallel=ranks)
        with pytest.raises(ZeroDivisionError), open_engine(spec, name="w", is_shared=False):
            pass
    assert checked[0] == checked[1] > 0
