"""Quotas as operators write them: with the CLI, and into the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.router.doors.test_api_keys import BODY, doors
from twolane.cli.app import app
from twolane.security.keys import read_keys


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["auth", *arguments], catch_exceptions=False)


def test_quotas_of_no_tenant_are_refused_and_the_file_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    run("create-key", "--tenant", "acme", "--keys", str(path))
    result = run("create-key", "--role", "viewer", "--tokens-per-min", "5", "--keys", str(path))
    assert [key.tenant for key in read_keys(path).keys] == ["acme"]
    assert result.exit_code == 2
    assert run("list", "--keys", str(path)).exit_code == 0


@pytest.mark.parametrize("option", ["--requests-per-s", "--weight"])
def test_a_quota_is_a_finite_number(tmp_path: Path, option: str) -> None:
    path = tmp_path / "keys.yaml"
    result = run("create-key", "--tenant", "acme", option, "inf", "--keys", str(path))
    assert result.exit_code == 2


async def test_an_infinite_quota_in_a_file_does_not_fail_every_request(tmp_path: Path) -> None:
    """Either the file is refused, and the keys stay as they were, or it is served."""
    async with doors(tmp_path) as its:
        text = its.keys.read_text()
        its.keys.write_text(text + "tenants: {red: {requests_per_s: .inf}}\n")
        assert its.server._keys is not None
        its.server._keys.refresh()
        assert (await its.http("/v1/completions", its.red, **BODY)).status_code == 200


def test_large_quotas_are_shown_whole(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    run("create-key", "--tenant", "acme", "--tokens-per-min", "1234567", "--keys", str(path))
    assert "1234567" in run("list", "--keys", str(path)).stdout
