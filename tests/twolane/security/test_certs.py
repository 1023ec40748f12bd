"""An authority in a directory, and what it issues."""

from __future__ import annotations

import datetime
import errno
import os
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.twolane.security.reading import contents, mode, names, read
from twolane.security.cert_files import CertsError
from twolane.security.certs import (
    init,
    issue,
    renew,
    request,
    write_nobody,
)
from twolane.security.tls import TlsFiles, client_context

PEM = serialization.Encoding.PEM


def test_keys_and_their_directory_are_their_users_alone(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "certs"
    authority = init(directory)
    (router,) = issue(directory, ["router/router-0"])
    assert mode(directory) == 0o700
    assert mode(authority.key) == mode(router.key) == 0o600


def test_a_certificate_names_its_role_and_the_hosts_of_a_server(tmp_path: Path) -> None:
    init(tmp_path)
    router, client = (
        *issue(tmp_path, ["router/router-0"], hosts=["gpu-a", "10.0.0.5", "::1"]),
        *issue(tmp_path, ["client/acme/alice"]),
    )
    assert names(router.cert) == [
        "spiffe://twolane/router/router-0", "router.twolane", "gpu-a", "10.0.0.5", "::1"
    ]  # fmt: skip
    assert names(client.cert) == ["spiffe://twolane/client/acme/alice"]
    assert (client.cert.name, router.hosts) == ("acme-alice.crt", ("gpu-a", "10.0.0.5", "::1"))
    days = (router.expires - datetime.datetime.now(datetime.UTC)).total_seconds() / 86_400
    assert 29.9 < days <= 30


def test_what_is_issued_is_signed_by_the_authority(tmp_path: Path) -> None:
    authority = init(tmp_path)
    (worker,) = issue(tmp_path, ["worker/decode-0"])
    context = client_context(TlsFiles(authority.cert, worker.cert, worker.key))
    assert context.verify_mode is ssl.CERT_REQUIRED
    read(worker.cert).verify_directly_issued_by(read(authority.cert))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    init(tmp_path)
    issue(tmp_path, ["worker/a"])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CertsError, match=r"ca.crt exists and is not overwritten"):
        init(tmp_path)
    with pytest.raises(CertsError, match=r"a.crt exists .* `twolane certs renew` renews it"):
        issue(tmp_path, ["worker/b", "worker/a"])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (["operator/zoe", "viewer/zoe"], r"viewer/zoe and operator/zoe would both be .*/zoe\.crt"),
        (["client/a/b", "worker/a-b"], r"worker/a-b and client/a/b would both be .*/a-b\.crt"),
        (["worker/a", "worker/ca"], r"worker/ca and the authority would both be .*/ca\.crt"),
    ],
)
def test_two_of_the_same_file_are_refused_before_one_is_written(
    tmp_path: Path, what: list[str], why: str
) -> None:
    init(tmp_path)
    with pytest.raises(CertsError, match=why):
        issue(tmp_path, what)
    assert {path.name for path in tmp_path.iterdir()} == {"ca.crt", "ca.key"}
    with pytest.raises(CertsError, match=why):
        request(tmp_path / "far", what)
    assert not (tmp_path / "far").exists()


def test_a_refusal_of_the_second_leaves_no_part_of_the_first(tmp_path: Path) -> None:
    init(tmp_path)
    for make in (issue, request):
        with pytest.raises(CertsError, match="operator/b is not a server"):
            make(tmp_path, ["router/a", "operator/b"], hosts=["gpu-a"])
    assert {path.name for path in tmp_path.iterdir()} == {"ca.crt", "ca.key"}


def test_an_identity_called_nobody_is_renewed_and_the_public_certificate_is_not(
    tmp_path: Path,
) -> None:
    init(tmp_path)
    issue(tmp_path, ["operator/nobody"])
    assert [each.identity for each in renew(tmp_path)] == ["operator/nobody"]
    with pytest.raises(CertsError, match=r"nobody\.crt exists .* name another --dir"):
        write_nobody(tmp_path)
    init(tmp_path / "other")
    write_nobody(tmp_path / "other")
    with pytest.raises(CertsError, match=r"other has nothing to renew: no certificate was issued"):
        renew(tmp_path / "other")
    with pytest.raises(CertsError, match="has no nobody; certificates there: none"):
        renew(tmp_path / "other", ["nobody"])


def test_a_full_disk_leaves_no_part_of_an_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[int] = []

    def is_full(fd: int, mode: str) -> None:
        created.append(fd)
        os.close(fd)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr("twolane.security.cert_files.os.fdopen", is_full)
        with pytest.raises(CertsError, match="No space left"):
            init(tmp_path / "certs")
    assert created
    assert list((tmp_path / "certs").iterdir()) == []
    init(tmp_path / "certs")  # once there is room


def test_renewal_keeps_identity_and_hosts_and_changes_the_key(tmp_path: Path) -> None:
    init(tmp_path)
    (old,) = issue(tmp_path, ["router/r"], hosts=["gpu-a", "10.0.0.5"], days=1)
    key, serial = old.key.read_bytes(), read(old.cert).serial_number
    (new,) = renew(tmp_path)
    assert (new.identity, new.hosts, new.cert) == (old.identity, old.hosts, old.cert)
    assert new.expires > old.expires
    assert new.key.read_bytes() != key
    assert read(new.cert).serial_number != serial
    assert mode(new.key) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"ca.crt", "ca.key", "r.crt", "r.key"}


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (["worker/a", "worker/../b"], "it must be worker/NAME"),
        (["boss/a"], "'boss' is not a role"),
        (["operator/alice"], "operator/alice is not a server: leave --host out"),
    ],
)
def test_what_cannot_be_issued_is_refused(tmp_path: Path, what: list[str], why: str) -> None:
    init(tmp_path)
    with pytest.raises(CertsError, match=why):
        issue(tmp_path, what, hosts=["gpu-a"] if "operator" in what[0] else [])


def test_a_host_must_be_a_name_or_an_address(tmp_path: Path) -> None:
    init(tmp_path)
    with pytest.raises(CertsError, match="--host gpu a is not a host name"):
        issue(tmp_path, ["router/r"], hosts=["gpu a"])


def test_certificates_of_another_authority_are_not_renewed(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        init(tmp_path / name)
    (worker,) = issue(tmp_path / "theirs", ["worker/a"])
    for path in (worker.cert, worker.key):
        path.rename(tmp_path / "ours" / path.name)
    issue(tmp_path / "ours", ["router/0"])
    issue(tmp_path / "ours", ["worker/b"])
    before = {path: path.read_bytes() for path in (tmp_path / "ours").iterdir()}
    with pytest.raises(CertsError, match="not issued by the authority beside it"):
        renew(tmp_path / "ours")
    with pytest.raises(CertsError, match="not issued by the authority beside it"):
        renew(tmp_path / "ours", ["b", "a"])
    assert {path: path.read_bytes() for path in (tmp_path / "ours").iterdir()} == before


@pytest.mark.parametrize("name", ["b.key", "b.crt", ".b.key.new"])
def test_renewal_where_a_directory_is_in_the_way_replaces_none(tmp_path: Path, name: str) -> None:
    init(tmp_path)
    issue(tmp_path, ["worker/a", "worker/b"])
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    before = contents(tmp_path)
    with pytest.raises(CertsError, match=rf"/{name} cannot be "):
        renew(tmp_path)
    assert contents(tmp_path) == before


def test_a_rename_that_fails_leaves_no_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(tmp_path)
    issue(tmp_path, ["worker/a", "worker/b"])
    files = set(contents(tmp_path))
    replace = os.replace

    def refuses_b(draft: Path, path: Path) -> None:
        if path.name == "b.key":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        replace(draft, path)

    monkeypatch.setattr("twolane.security.cert_files.os.replace", refuses_b)
    with pytest.raises(CertsError, match=r"b\.key cannot be replaced: Operation not permitted"):
        renew(tmp_path)
    assert set(contents(tmp_path)) == files


def test_without_an_authority_the_refusal_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(CertsError, match="`twolane certs init`"):
        issue(tmp_path, ["worker/a"])
    with pytest.raises(CertsError, match="`twolane certs init`"):
        renew(tmp_path)


def test_an_authority_whose_key_is_anothers_issues_nothing(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        init(tmp_path / name)
    issue(tmp_path / "ours", ["worker/a"])
    (tmp_path / "theirs/ca.key").rename(tmp_path / "ours/ca.key")
    before = (tmp_path / "ours/a.crt").read_bytes()
    why = r"ca\.key is not the key of .*ca\.crt"
    with pytest.raises(CertsError, match=why):
        issue(tmp_path / "ours", ["worker/b"])
    with pytest.raises(CertsError, match=why):
        renew(tmp_path / "ours")
    assert (tmp_path / "ours/a.crt").read_bytes() == before


def test_certificates_end_with_their_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = init(tmp_path, days=1)
    (short,) = issue(tmp_path, ["worker/a"], days=30)
    assert short.expires == authority.expires
    (shorter,) = renew(tmp_path, days=0)
    assert shorter.expires < authority.expires
    later = authority.expires + datetime.timedelta(seconds=1)
    monkeypatch.setattr(
        "twolane.security.certs._after", lambda days: later + datetime.timedelta(days=days)
    )
    with pytest.raises(
        CertsError, match=r"ca\.crt has expired: make an authority in another --dir"
    ):
        renew(tmp_path)
