"""`twolane auth` on files of keys."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from twolane.cli.app import app
from twolane.security.key_file import KeyFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["auth", *arguments], catch_exceptions=False)


def test_key_is_printed_alone_on_standard_output_and_never_again(path: Path) -> None:
    result = run("create-key", "--tenant", "acme", "--keys", str(path))
    (shown,) = result.stdout.splitlines()
    assert KeyFile(path).identity(shown).tenant == "acme"
    secret = shown.split("_", 2)[2]
    assert secret not in result.stderr
    assert secret not in run("list", "--keys", str(path), "--json").output


def test_list_shows_keys_and_quotas(path: Path) -> None:
    options = ("--weight", "2", "--tokens-per-min", "60000", "--expires-in", "30d")
    run("create-key", "--tenant", "acme", "--keys", str(path), *options)
    made = json.loads(run("create-key", "--tenant", "b", "--keys", str(path), "--json").stdout)
    assert run("revoke", made["id"], "--keys", str(path)).stdout.endswith("is revoked\n")
    value = json.loads(run("list", "--keys", str(path), "--json").stdout)
    assert [(key["tenant"], key["state"]) for key in value["keys"]] == [
        ("acme", "active"),
        ("b", "revoked"),
    ]
    created, expires = (
        datetime.fromisoformat(value["keys"][0][its]) for its in ("created", "expires")
    )
    assert expires - created == timedelta(days=30)
    assert value["keys"][1]["expires"] is None
    assert value["tenants"] == {
        "acme": {
            "weight": 2.0, "requests_per_s": None, "tokens_per_min": 60000, "concurrent": None,
            "max_priority": None,
        }
    }  # fmt: skip
    table = run("list", "--keys", str(path)).stdout
    assert "revoked" in table
    assert "60000" in table


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (("create-key", "--tenant", "a b"), "'a b'; it must be 1 to 64 letters, digits, dots", 2),
        (("create-key", "--tenant", "-"), "'-'; it must be 1 to 64 letters, digits, dots", 2),
        (("create-key",), "a client's key is for a tenant: name it with --tenant", 2),
        (("create-key", "--role", "viewer", "--tenant", "a"), "leave --tenant out", 2),
        (("revoke", "x"), "No such file", 2),
        (("list",), "No such file", 2),
    ],
)
def test_what_is_wrong_is_one_clear_line(
    path: Path, arguments: tuple[str, ...], said: str, code: int
) -> None:
    result = run(*arguments, "--keys", str(path))
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_key_file_that_is_a_pipe_is_refused_in_one_line(path: Path) -> None:
    os.mkfifo(path)
    result = run("create-key", "--tenant", "acme", "--keys", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: {path}: not a regular file\n"


NO_DURATION = "is not a duration like 90s, 10m, 2h or 1d, of 60 to 2147483647 s"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--expires-in", "soon", f"'soon' {NO_DURATION}"),
        ("--expires-in", "30", f"'30' {NO_DURATION}"),
        ("--weight", "0", "0.0 is not in the range x>0."),
        ("--requests-per-s", "-1", "-1.0 is not in the range x>0."),
        ("--tokens-per-min", "0", "0 is not in the range x>=1."),
        ("--concurrent", "0", "0 is not in the range x>=1."),
        ("--max-priority", "1000", "1000 is not in the range -100<=x<=100."),
        ("--max-priority", "-101", "-101 is not in the range -100<=x<=100."),
    ],
)
def test_a_quota_out_of_its_range_is_refused_in_the_words_of_its_option(
    path: Path, option: str, value: str, said: str
) -> None:
    result = run("create-key", "--tenant", "a", option, value, "--keys", str(path))
    assert (result.exit_code, result.stdout, path.exists()) == (2, "", False)
    assert result.stderr.endswith(f"Error: Invalid value for '{option}': {said}\n")


def test_whoami_tells_what_the_cluster_says_of_the_key_in_the_environment(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TWOLANE_API_KEY", raising=False)
    bare = run("whoami", "--endpoint", door.endpoint)
    assert bare.stdout == "client, without a key or certificate\n"
    monkeypatch.setenv("TWOLANE_API_KEY", "tl_a_b")
    head, _, row = run("whoami", "--endpoint", door.endpoint).stdout.splitlines()
    assert head == "client of tenant acme by Bearer tl_a_b", "the door repeats what it was shown"
    assert row.split() == ["tokens", "600", "-20", "62.0", "s"]
    value = json.loads(run("whoami", "--endpoint", door.endpoint, "--json").stdout)
    assert (value["tenant"], value["quotas"][0]["remaining"]) == ("acme", -20)
