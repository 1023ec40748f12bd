"""API keys: what is accepted, what is said about the rest, how a file changes under a server."""

from __future__ import annotations

import logging
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from twolane.errors import InvalidRequestError, UnauthenticatedError
from twolane.security.identity import Identity, Role
from twolane.security.key_edit import create_key, revoke_key
from twolane.security.key_file import KeyFile
from twolane.security.keys import KeyFileError, TenantLimits, find_key, read_keys


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def test_key_tells_its_tenant_and_the_file_does_not_tell_the_key(path: Path) -> None:
    shown, key = create_key(path, "acme")
    assert KeyFile(path).identity(shown) == Identity(Role.CLIENT, key.id, "acme")
    prefix, key_id, secret = shown.split("_", 2)
    assert (prefix, key_id) == ("tl", key.id)
    assert len(secret) >= 43, "256 bits"
    assert secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_wrong_keys_are_refused_and_the_answer_does_not_tell_a_known_id_from_another(
    path: Path,
) -> None:
    shown, key = create_key(path, "acme")
    file = KeyFile(path)
    told = set()
    for wrong in (shown[:-1], shown + "x", f"tl_{key.id}_", f"tl_{key.id}_x", "tl_nobody_x"):
        with pytest.raises(UnauthenticatedError) as raised:
            file.identity(wrong)
        told.add(raised.value.message)
    assert len(told) == 2, "malformed, or unknown"
    for malformed in ("", "x", "tl", "tl_", "tl__x", "sk-1234", "TL_a_b", "\ud800", "tl_\ud800_x"):
        with pytest.raises(UnauthenticatedError, match="create-key"):
            file.identity(malformed)


def test_revoked_and_expired_keys_are_told_so_to_whoever_has_their_secret(path: Path) -> None:
    shown, key = create_key(path, "acme", expires_in=timedelta(days=1))
    keys, now = read_keys(path).by_id(), datetime.now(UTC)
    assert find_key(keys, shown, now).id == key.id
    with pytest.raises(UnauthenticatedError, match="is expired"):
        find_key(keys, shown, now + timedelta(days=1, seconds=1))
    revoke_key(path, key.id)
    with pytest.raises(UnauthenticatedError, match="is revoked"):
        KeyFile(path).identity(shown)
    with pytest.raises(UnauthenticatedError, match="is unknown"):
        KeyFile(path).identity(shown[:-1])


def test_key_of_an_operator_is_of_no_tenant(path: Path) -> None:
    shown, key = create_key(path, "", role=Role.OPERATOR)
    assert KeyFile(path).identity(shown) == Identity(Role.OPERATOR, key.id)


def test_key_of_a_client_without_a_tenant_is_not_made(path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="a client needs a tenant"):
        create_key(path, "")
    with pytest.raises(InvalidRequestError, match="nobody else has one"):
        create_key(path, "acme", role=Role.VIEWER)
    assert not path.exists()


def test_running_server_follows_its_file(path: Path) -> None:
    first, key = create_key(path, "acme", limits={"concurrent": 3})
    file = KeyFile(path)
    assert file.refresh() == frozenset()
    second, _ = create_key(path, "beta", limits={"weight": 2.0, "tokens_per_min": 900})
    with pytest.raises(UnauthenticatedError):
        file.identity(second)
    assert file.refresh() == frozenset()
    assert file.identity(second).tenant == "beta"
    assert file.limits("acme") == TenantLimits(concurrent=3)
    assert file.limits("beta") == TenantLimits(weight=2.0, tokens_per_min=900)
    assert file.limits("gamma") == TenantLimits()
    revoke_key(path, key.id)
    assert file.is_active(key.id)
    assert file.refresh() == {key.id}
    assert not file.is_active(key.id)
    with pytest.raises(UnauthenticatedError):
        file.identity(first)


@pytest.mark.parametrize("broken", ["keys: [", "keys: 7", "nothing: 1", None])
def test_broken_file_keeps_the_last_good_one_and_is_logged_once(
    path: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    shown, _ = create_key(path, "acme")
    file = KeyFile(path)
    good = path.read_text()
    path.unlink()
    if broken is not None:
        path.write_text(broken)
    with caplog.at_level(logging.ERROR):
        assert file.refresh() == file.refresh() == frozenset()
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert file.identity(shown).tenant == "acme"
    path.write_text(good.replace("acme", "other"))
    file.refresh()
    assert file.identity(shown).tenant == "other"


DIGEST = "0" * 64
KEY = {"id": "a", "tenant": "t", "sha256": DIGEST}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"keys": [{"id": "a", "tenant": "t"}]}, "sha256"),
        ({"keys": [{**KEY, "sha256": "short"}]}, r"64 digits in .*keys\[0\].sha256"),
        ({"keys": [{**KEY, "id": 12}]}, r"keys\[0\].id"),
        ({"keys": [{**KEY, "id": "a_b"}]}, r"64 letters and digits .*keys\[0\].id"),
        ({"keys": [{**KEY, "tenant": "a/b"}]}, r"letters, digits, dots, .*keys\[0\].tenant"),
        ({"tenants": {"a b": {}}}, r"letters, digits, dots, .* in `\$.tenants`"),
        ({"keys": [{**KEY, "role": "king"}]}, r"keys\[0\].role"),
        ({"keys": [{**KEY, "role": "worker"}]}, "keys are for client, viewer"),
        ({"keys": [{**KEY, "role": "viewer"}]}, "a client needs a tenant"),
        ({"keys": [{**KEY, "tenant": ""}]}, "a client needs a tenant"),
        ({"keys": [{**KEY, "expires": "2027-01-01T00:00:00"}]}, r"keys\[0\].expires"),
        ({"keys": [{**KEY, "colour": "red"}]}, "colour"),
        ({"keys": [KEY, KEY]}, "twice"),
        ({"tenants": {"t": {"weight": 0}}}, "tenants"),
        ({"tenants": {"t": {"concurrent": 0}}}, "tenants"),
        ({"tenants": {"t": {"requests": 1}}}, "requests"),
    ],
)
def test_faults_of_a_file_are_named(path: Path, value: Any, named: str) -> None:
    path.write_text(msgspec.yaml.encode(value).decode())
    with pytest.raises(KeyFileError, match=named) as raised:
        KeyFile(path)
    assert str(path) in str(raised.value)
    assert "regex" not in str(raised.value)


def test_times_may_be_written_as_yaml_has_them(path: Path) -> None:
    path.write_text(
        f"keys:\n- {{id: a, tenant: t, sha256: '{DIGEST}', expires: 2027-01-31T00:00:00Z}}"
    )
    (key,) = read_keys(path).keys
    assert key.expires == datetime(2027, 1, 31, tzinfo=UTC)


def test_changes_leave_everything_else_as_it_was(path: Path) -> None:
    _, first = create_key(path, "acme", limits={"weight": 3.0, "concurrent": 5})
    _, second = create_key(path, "acme", limits={"concurrent": 9})
    ring = read_keys(path)
    assert ring.keys == (first, second)
    assert ring.tenants == {"acme": TenantLimits(weight=3.0, concurrent=9)}
    revoke_key(path, first.id)
    assert read_keys(path).keys[1] == second
    with pytest.raises(InvalidRequestError, match="no key 'nobody'"):
        revoke_key(path, "nobody")
    assert os.listdir(path.parent) == [path.name], "no temporary file is left"


def test_values_out_of_their_bounds_change_nothing(path: Path) -> None:
    for tenant, limits in (
        ("a/b", {}),
        ("a", {"weight": -1.0}),
        ("a", {"concurrent": 0}),
    ):
        with pytest.raises(msgspec.ValidationError):
            create_key(path, tenant, limits=limits)
    assert not path.exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_key_goes_to_the_file_that_a_link_leads_to(path: Path, is_there: bool) -> None:
    link = path.with_name("link.yaml")
    link.symlink_to(path.name)
    if is_there:
        create_key(path, "acme")
    shown, key = create_key(link, "beta")
    assert KeyFile(path).identity(shown).tenant == "beta"
    revoke_key(link, key.id)
    assert read_keys(path).keys[-1].revoked
    assert link.is_symlink()


def test_a_file_keeps_its_mode(path: Path) -> None:
    _, key = create_key(path, "acme")
    path.chmod(0o640)
    create_key(path, "beta")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    revoke_key(path, key.id)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_that_root_edits_keeps_its_owner(path: Path) -> None:
    create_key(path, "acme")
    os.chown(path, 1234, 4321)
    create_key(path, "beta")
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (1234, 4321, 0o600)


def test_what_is_no_regular_file_is_refused_and_left_as_it_is(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(KeyFileError, match=r"keys\.yaml: not a regular file"):
        create_key(path, "acme")
    with pytest.raises(KeyFileError, match="not a regular file"):
        revoke_key(path, "a")
    assert stat.S_ISFIFO(path.stat().st_mode)
    loop = path.with_name("loop.yaml")
    loop.symlink_to(loop)
    with pytest.raises(KeyFileError, match="Too many levels of symbolic links"):
        create_key(loop, "acme")
    assert {each.name for each in path.parent.iterdir()} == {path.name, loop.name}
