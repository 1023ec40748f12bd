"""Where the secret of processes that are started by hand comes from, and where it never goes."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import psutil
import pytest

from tests.deploy.clusters import cluster_with, model_with
from tests.deploy.test_launcher_process import DUMMY, spec
from twolane.deploy.errors import StartError
from twolane.deploy.launch.process_launcher import ProcessLauncher
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.secret import secret_by_hand

CLUSTER = cluster_with(model_with(model_dir="", name="ok"), prefill=1, decode=1)


def test_a_named_file_holds_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    assert secret_by_hand(path) == "0123456789abcdef"


@pytest.mark.parametrize("text", ["", "short", "two words are no secret", "kein geheimes Wört"])
def test_a_file_without_a_secret_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secret"
    path.write_text(text)
    with pytest.raises(StartError, match=str(path)):
        secret_by_hand(path)
    with pytest.raises(StartError, match="no-such-file"):
        secret_by_hand(tmp_path / "no-such-file")


def test_all_that_one_user_starts_by_hand_shares_a_file_that_nobody_else_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        drawn = set(pool.map(secret_by_hand, [None] * 6, chunksize=1))
    assert drawn == {secret_by_hand(None)}
    (path,) = (tmp_path / ".twolane").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_home_that_cannot_be_written_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(StartError, match="--secret-file"):
        secret_by_hand(None)


def test_every_process_of_a_cluster_has_its_secret_and_every_cluster_another() -> None:
    router, workers = CLUSTER.router(), CLUSTER.workers("h:1")
    assert {router.secret, *(worker.secret for worker in workers)} == {CLUSTER.secret}
    other = ClusterSpec(model=CLUSTER.model, pools=CLUSTER.pools)
    assert other.secret != CLUSTER.secret
    for value in (CLUSTER, router, *workers):
        assert CLUSTER.secret not in repr(value)


async def test_no_command_line_and_no_environment_shows_the_secret(tmp_path: Path) -> None:
    launcher = ProcessLauncher(tmp_path, command=DUMMY)
    wanted = spec()
    handle = await launcher.start(wanted)
    process = psutil.Process(handle.pid)
    shown = [*process.cmdline(), *process.environ().values()]
    await launcher.close()
    assert any("dummy_process" in part for part in shown)
    assert not any(wanted.secret in part for part in shown)
