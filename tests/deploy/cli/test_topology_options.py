"""`twolane up --topology`, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from tests.deploy.agent.agent_cluster import wait_until
from twolane import ClusterStatus
from twolane.deploy.cli.up_command import up as up_command
from twolane.testing import LocalCluster, start_local


def up(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "twolane.cli", "up", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def up_here(*arguments: str) -> Result:
    """In this process: for commands that start nothing."""
    return CliRunner().invoke(up_command, arguments, obj=Path("/nowhere"))


def tokens(cluster: LocalCluster) -> tuple[int, ...]:
    with cluster.client() as client:
        completion = client.generate("Once upon a time", max_tokens=16, temperature=0, seed=1)
    return completion.token_ids


def pools(status: ClusterStatus) -> list[tuple[str, str, tuple[str, ...]]]:
    return sorted((w.worker_id, w.pool, w.devices) for w in status.workers)


def test_the_laptops_topology_serves_and_the_status_shows_pools_and_devices() -> None:
    with start_local(topology="laptop", engine="fake", launcher="process") as cluster:
        assert pools(cluster.status()) == [
            ("decode-0", "decode", ("cpu",)), ("prefill-0", "prefill", ("cpu",)),
        ]  # fmt: skip
        assert len(tokens(cluster)) == 16


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("colocated", ["colocated-0", "colocated-1"]),
        ("1p1d", ["decode-0", "prefill-0"]),
        ("2p2d", ["decode-0", "decode-1", "prefill-0", "prefill-1"]),
    ],
)
def test_the_topologies_that_come_with_us_start_what_they_say(
    name: str, workers: list[str]
) -> None:
    with start_local(topology=name, engine="fake", launcher="process") as cluster:
        assert [worker for worker, _, _ in pools(cluster.status())] == workers
        assert len(tokens(cluster)) == 16


@pytest.mark.soak  # tests/cluster/test_unequal_ranks.py serves from such a file each time
def test_the_topology_of_unequal_ranks_serves_from_a_group_to_single_workers() -> None:
    with start_local(
        topology="tp2-to-tp1", launcher="process", device="cpu", pages=64, max_context_tokens=512
    ) as cluster:
        assert pools(cluster.status()) == [
            ("decode-0", "decode", ("cpu",)), ("decode-1", "decode", ("cpu",)),
            ("prefill-0", "prefill", ("cpu", "cpu")),
        ]  # fmt: skip
        assert len(tokens(cluster)) == 16


def test_a_file_of_ones_own_serves_with_options_that_change_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "launcher: process\n"
        "workers: {device: cpu, pages: 64, max_context_tokens: 512, threads: 1}\n"
        "pools:\n"
        "  - {role: prefill, name: readers, workers: 2, transports: [tcp]}\n"
        "  - {role: decode, name: writers}\n"
    )
    with start_local(topology=file, engine="fake", growth_tokens=16) as cluster:
        assert len(tokens(cluster)) == 16
        names = [name for name, _, _ in pools(cluster.status())]
        assert names == ["readers-0", "readers-1", "writers-0"]
        assert {pool for _, pool, _ in pools(cluster.status())} == {"readers", "writers"}


def test_pages_go_by_as_many_sockets_as_were_asked_for() -> None:
    with start_local(transport=["unix"], sockets=3, checksums=True, engine="fake") as cluster:
        with cluster.client() as client:
            for word in ("one", "two", "three", "four"):  # pages of each are a post, by another
                assert len(client.generate(word * 9, max_tokens=2, seed=1).token_ids) == 2

        def sockets(worker: str) -> dict[bool, list[int]]:
            """How many there are of each name, by whether it is for DONE."""
            here = psutil.Process(cluster.pid(worker)).net_connections("unix")
            names = Counter(str(c.laddr) for c in here if str(c.laddr).startswith("@twolane-"))
            found: dict[bool, list[int]] = {True: [], False: []}
            for name, n in names.items():
                found["-done-" in name].append(n)
            return found

        wait_until(lambda: sum(sockets("decode-0")[False]) >= 1 + 3)  # one listens
        assert sockets("decode-0") == {True: [1], False: [1 + 3]}
        assert sockets("prefill-0")[True] == [], "it receives no pages"


@pytest.mark.parametrize("transport", ["tcp", "nixl"])
def test_a_cluster_without_sums_over_a_network_is_refused(transport: str) -> None:
    arguments = ["--no-checksums", "--launcher", "process", "--port", "0"]
    done = up_here("--transport", transport, *arguments)
    assert done.exit_code == 2
    assert f"pages are always summed over networks ({transport})" in done.stderr


def test_a_worker_without_sums_over_a_network_is_refused() -> None:
    command = [sys.executable, "-m", "twolane.deploy", "worker", "--engine", "fake"]
    command.append("--no-checksums")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "always summed" in done.stderr) == (2, True)


def test_a_printed_topology_is_a_file_that_starts_the_same() -> None:
    printed = up_here("--prefill", "2", "--decode", "1", "--engine", "fake", "--port", "0",
                      "--print-topology")  # fmt: skip
    assert printed.exit_code == 0
    assert printed.stdout.startswith("model: bundled\nlauncher: ray\n")
    assert "  - role: prefill\n    workers: 2\n  - role: decode\n    workers: 1\n" in printed.stdout
    printed = up_here("--transport", "unix", "--sockets", "3", "--no-checksums", "--print-topology")
    assert "    - unix\n  checksums: false\n  sockets: 3\n" in printed.stdout


def test_a_bound_of_the_scaler_that_is_off_is_refused() -> None:
    refused = up_here("--max-decode", "4", "--print-topology")
    assert refused.exit_code == 2
    assert "--max-decode does nothing without --autoscale" in refused.stderr
    for also in ("--autoscale", "--flips"):
        assert up_here(also, "--print-topology").exit_code == 0
    assert up_here("--autoscale", "--budget", "8", "--print-topology").exit_code == 0


@pytest.mark.parametrize(
    ("text", "arguments", "code", "message"),
    [
        ("pools: [{role: both, page: 5}]", [], 2, "t.yaml:1: there is no field page; did you mean"),
        ("pools: [{role: both}]", ["--decode", "2"], 2, "leave --decode out, or edit the file"),
        ("pools: [{role: both}]", ["--launcher", "slurm"], 2, "'slurm' is not one of 'ray', 'pro"),
        ("pools: [{role: both}]", ["--budget", "8"], 2, "--budget does nothing without --autoscal"),
    ],
)
def test_what_is_wrong_with_a_file_or_its_options_is_told(
    text: str, arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    """Nothing is started, so that the command may run in this process."""
    (tmp_path / "t.yaml").write_text(text)
    options = ["--topology", str(tmp_path / "t.yaml"), "--port", "0", *arguments]
    done = CliRunner().invoke(up_command, options, obj=tmp_path)
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr
    assert isinstance(done.exception, SystemExit)


def test_a_terminal_shows_why_a_worker_of_a_file_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("pools: [{role: both, pages: 2, engine: fake}]")
    done = up("--topology", str(tmp_path / "t.yaml"), "--port", "0", "--launcher", "process")
    assert (done.returncode, "is too small to answer" in done.stderr) == (1, True), done.stderr
    assert "Traceback" not in done.stderr


def test_gpus_that_are_too_few_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    done = up_here("--topology", "colocated", "--port", "0")
    assert done.exit_code == 1
    assert "2 workers need 2 GPUs in all (colocated: 2 of 1); 1 can be seen here" in done.stderr
    assert "starting" not in done.stdout


@pytest.mark.parametrize("launcher", ["process", pytest.param("ray", marks=pytest.mark.soak)])
def test_workers_are_given_gpus_up_to_the_engine_which_has_none_here(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cards that are only said to be there: what reads the list is real, torch finds none of it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    with start_local(
        topology="tp2", launcher=launcher, pages=64, max_context_tokens=512
    ) as cluster:
        assert pools(cluster.status()) == [("colocated-0", "colocated", ("cpu", "cpu"))]
        before = tokens(cluster)
        n_events = len(cluster.events)
        cluster.kill("colocated-0")
        cluster.wait_for("started", "colocated-0", after=n_events, timeout_s=60)
        assert tokens(cluster) == before
