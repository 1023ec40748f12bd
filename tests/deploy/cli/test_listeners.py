"""A listener that other machines reach without TLS: refused, with the line to type instead."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.deploy.clusters import cluster_with, model_with
from twolane.deploy import __main__ as by_hand
from twolane.deploy.__main__ import main
from twolane.deploy.agent.config import AgentConfig
from twolane.deploy.agent.server import AgentServer
from twolane.deploy.cli.up_command import up
from twolane.deploy.spec.listeners import check_listeners, insecure_listeners, warn_of
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec
from twolane.rpc.secret import new_secret
from twolane.security.certs import init, issue
from twolane.security.credentials import Credentials

FAKE = ["--engine", "fake"]
CLUSTER = cluster_with(model_with(engine="fake"), prefill=1, decode=1, host="0.0.0.0")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def typed(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr("sys.argv", ["", *arguments])


def test_up_beyond_the_loopback_without_tls_is_refused_with_the_line_to_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["--host", "0.0.0.0", *FAKE]
    typed(monkeypatch, arguments)
    with pytest.raises(SystemExit) as caught:
        up(arguments, obj=tmp_path)
    assert caught.value.code == 2
    files = (
        "--tls-ca ~/.config/twolane/certs/ca.crt --tls-cert ~/.config/twolane/certs/router-0.crt "
        "--tls-key ~/.config/twolane/certs/router-0.key"
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(
        "Error: --host 0.0.0.0 can be reached from other machines, so it needs TLS"
    )
    assert lines[1:] == [
        "  twolane certs init",
        "  twolane certs issue router/router-0 --host $(hostname) --host localhost",
        f"  twolane up --host 0.0.0.0 --engine fake {files}",
        "or, where the network is private,",
        "  twolane up --host 0.0.0.0 --engine fake --insecure",
    ]


def test_what_is_there_already_need_not_be_typed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    init(home / ".config/twolane/certs")
    issue(home / ".config/twolane/certs", ["router/router-0"])
    typed(monkeypatch, ["--bind-host", "10.0.0.5"])
    with pytest.raises(SystemExit):
        up(["--bind-host", "10.0.0.5"], obj=home)
    said = capsys.readouterr().err
    assert "--bind-host 10.0.0.5 can be reached from other machines" in said
    assert "  twolane certs i" not in said


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["router", "--host", "0.0.0.0"], "--host 0.0.0.0"),
        (["router", "--bind-host", "10.0.0.5"], "--bind-host 10.0.0.5"),
        (["worker", "--bind-host", "10.0.0.5", *FAKE], "--bind-host 10.0.0.5"),
    ],
)
def test_processes_that_are_started_by_hand_refuse_it_too(
    arguments: list[str],
    option: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed(monkeypatch, arguments)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"Error: {option} can be reached from other machines")
    assert "python -m twolane.deploy" in said
    assert "--insecure" in said


@pytest.mark.parametrize("where", [[], ["--bind-host", "10.0.0.5", "--insecure"]])
def test_a_port_for_certificates_where_nobody_can_show_one_is_refused(
    where: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*where, "--admin-port", "0"]
    typed(monkeypatch, arguments)
    monkeypatch.setattr(by_hand, "run_process", lambda spec, ready_fd: None)
    nowhere = ["--log-dir", "/dev/null/logs"]  # it starts in no case
    refused = CliRunner().invoke(up, [*FAKE, *arguments, *nowhere], obj=tmp_path)
    by_itself = CliRunner().invoke(main, ["router", *arguments])
    for done in (refused, by_itself):
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert done.stderr.startswith("Error: --admin-port takes certificates, and at --bind-host")


def test_insecure_listeners_are_allowed_and_known() -> None:
    cluster = replace(CLUSTER, insecure=True)
    specs: list[ProcessSpec] = [cluster.router(), *cluster.workers("h:1")]
    check_listeners(specs, [])
    assert [insecure_listeners(spec) for spec in specs] == [["--host 0.0.0.0"]] * 3
    assert not insecure_listeners(replace(CLUSTER.router(), settings=type(CLUSTER.settings)()))


async def test_the_log_says_each_minute_what_is_insecure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    third = asyncio.Event()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            third.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    caplog.set_level(logging.WARNING)
    warning = asyncio.create_task(warn_of(["--host 0.0.0.0"]))
    await third.wait()
    warning.cancel()
    said = [record.getMessage() for record in caplog.records]
    assert said == ["without TLS, reached from other machines: --host 0.0.0.0"] * 3
    assert waits == [60.0] * 3


@pytest.mark.parametrize(("options", "shares"), [((), False), (("--routers", "4"), True)])
def test_routers_that_are_started_by_hand_share_their_ports_if_they_are_several(
    options: tuple[str, ...], shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RouterSpec] = []
    monkeypatch.setattr(by_hand, "_run", lambda kind, spec, given: made.append(spec()))
    result = CliRunner().invoke(by_hand.main, ["router", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert made[0].shares_ports is shares


async def test_agent_that_others_reach_without_tls_warns_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = AgentConfig(
        host_name="node-a",
        state_dir=tmp_path / "state",
        log_dir=tmp_path / "logs",
        credentials=Credentials(secret=new_secret(), insecure=True),
        bind_host="0.0.0.0",
    )
    async with AgentServer(config) as server:
        await asyncio.sleep(0)
        said = [record.getMessage() for record in caplog.records]
    assert f"without TLS, reached from other machines: --listen {server.endpoint}" in said
