from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from twolane.errors import UnavailableError
from twolane.testing import LocalCluster, start_local


def test_a_folder_deploy_of_the_users_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "__init__.py").write_text("raise SystemExit('the wrong deploy')")
    monkeypatch.chdir(tmp_path)
    with start_local(engine="fake") as cluster, cluster.client() as client:
        assert client.generate("a", max_tokens=2).tokens


def test_what_the_launcher_said_last_is_in_the_error() -> None:
    with (
        pytest.raises(UnavailableError, match=r"(?s)exit code 2: .*--no-such-thing"),
        start_local(engine="fake", no_such_thing=True),
    ):
        pass


def test_counts_that_cannot_serve_are_refused_in_the_launchers_words_alone() -> None:
    with (
        pytest.raises(UnavailableError, match=r"^0 prefill and 1 decode workers can answer"),
        start_local(engine="fake", prefill=0),
    ):
        pass


def test_an_event_that_is_cut_off_hides_no_end() -> None:
    """Without its reader a cluster would seem to run on."""
    cluster = LocalCluster([sys.executable, "-c", "print('{\"kind\": \"sta', end='')"])
    with pytest.raises(UnavailableError, match="the cluster ended with exit code 0"):
        cluster.wait_for("ready", timeout_s=60.0)
    assert [event["kind"] for event in cluster.events] == ["output"]
    cluster.stop()


def test_without_the_extra_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else there(name)
    )
    with pytest.raises(UnavailableError, match=r"pip install 'twolane\[serve\]'"), start_local():
        pass
