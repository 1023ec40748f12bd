"""`twolane certs`, as it is typed."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from twolane import security
from twolane.cli.app import app
from twolane.security import nobody


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def certs(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["certs", *arguments])


def test_three_commands_make_what_a_router_beyond_the_loopback_needs(home: Path) -> None:
    made = certs("init")
    assert made.exit_code == 0, made.output
    folder = home / ".config/twolane/certs"
    assert str(folder / "ca.crt") in made.output
    assert "next: twolane certs issue router/router-0 --host localhost" in made.output
    made = certs("issue", "router/router-0", "--host", "gpu-a", "--host", "10.0.0.5")
    assert made.exit_code == 0, made.output
    assert "router/router-0  gpu-a 10.0.0.5" in made.output
    (line,) = [each for each in made.output.splitlines() if each.startswith("next: ")]
    assert shlex.split(line)[1:] == [
        "twolane", "up", "--host", "0.0.0.0",
        "--tls-ca", f"{folder}/ca.crt",
        "--tls-cert", f"{folder}/router-0.crt",
        "--tls-key", f"{folder}/router-0.key",
    ]  # fmt: skip
    made = certs("renew")
    assert made.exit_code == 0, made.output
    assert "router/router-0  gpu-a 10.0.0.5" in made.output


def test_a_router_whose_certificate_names_no_host_is_told_that_clients_refuse_it() -> None:
    certs("init", "--dir", "d")
    made = certs("issue", "router/router-0", "worker/decode-0", "--dir", "d")
    assert made.exit_code == 0
    assert made.stderr.startswith("d/router-0.crt names no host, so clients refuse it")
    assert len(made.stderr.splitlines()) == 1, "nobody dials a worker by name"
    assert certs("issue", "router/router-1", "--host", "a", "--dir", "d").stderr == ""


def test_a_persons_certificate_comes_with_the_command_that_shows_it() -> None:
    certs("init", "--dir", "d")
    made = certs("issue", "client/acme/alice", "--dir", "d")
    assert "next: twolane models --ca d/ca.crt --cert d/acme-alice.crt --key" in made.output


def test_a_request_is_signed_when_somebody_says_that_its_sender_may_be_that(home: Path) -> None:
    certs("init", "--dir", "ca")
    made = certs("request", "agent/node-a", "--host", "10.0.0.5", "--dir", "node-a")
    assert made.exit_code == 0, made.output
    assert made.output.splitlines()[-1].endswith("twolane certs sign node-a.csr")
    arguments = ["certs", "sign", "node-a/node-a.csr", "--dir", "ca"]
    refused = CliRunner().invoke(app, arguments, input="n\n")
    assert "node-a/node-a.csr is agent/node-a at 10.0.0.5?" in refused.output
    assert refused.exit_code == 2
    assert not (home / "node-a/node-a.crt").exists()
    assert CliRunner().invoke(app, arguments, input="").exit_code != 0, "nobody has said so"
    assert CliRunner().invoke(app, arguments, input="y\n").exit_code == 0
    (signed,) = json.loads(certs(*arguments[1:], "--yes", "--json").output)
    assert signed["identity"] == "agent/node-a"
    assert (home / "node-a/node-a.crt").exists()


def test_of_two_requests_both_are_signed_or_none(home: Path) -> None:
    certs("init", "--dir", "ca")
    certs("request", "worker/a", "worker/b", "--dir", "far")
    sign = ["sign", "far/a.csr", "far/b.csr", "--yes", "--dir", "ca"]
    (home / "far/b.crt").mkdir()
    refused = certs(*sign)
    assert refused.exit_code == 2
    assert refused.output == "Error: far/b.crt cannot be replaced: it is a directory\n"
    assert not (home / "far/a.crt").exists()
    (home / "far/b.crt").rmdir()
    signed = json.loads(certs(*sign, "--json").output)
    assert [each["identity"] for each in signed] == ["worker/a", "worker/b"]


def test_clients_without_a_certificate_get_nobodys_which_is_never_renewed(home: Path) -> None:
    certs("init", "--dir", "d")
    certs("issue", "worker/a", "--dir", "d")
    assert certs("nobody", "--dir", "d").output == "wrote d/nobody.crt d/nobody.key\n"
    assert (home / "d/nobody.crt").read_bytes() == nobody.CERT
    assert [
        each["identity"] for each in json.loads(certs("renew", "--dir", "d", "--json").output)
    ] == ["worker/a"]


def test_programs_read_json(home: Path) -> None:
    assert json.loads(certs("init", "--dir", str(home / "d"), "--json").output)[0]["identity"] == ""
    made = certs("issue", "worker/a", "worker/b", "--dir", str(home / "d"), "--json")
    first, second = json.loads(made.output)
    assert (first["identity"], second["identity"]) == ("worker/a", "worker/b")
    assert Path(first["cert"]).exists()
    assert Path(first["key"]).exists()
    assert first["expires"].endswith("+00:00")


def test_a_refusal_is_one_line_and_code_2() -> None:
    for arguments in (["issue", "worker/a"], ["issue", "boss/a"], ["renew"]):
        refused = certs(*arguments)
        assert refused.exit_code == 2
        assert refused.output.startswith("Error: ")
        assert len(refused.output.splitlines()) == 1


def test_without_cryptography_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "twolane.security.certs", raising=False)
    monkeypatch.delattr(security, "certs", raising=False)
    done = certs("init")
    assert done.exit_code == 2
    assert "making certificates needs cryptography: pip install 'twolane[serve]'" in done.output
