"""An authority in a directory, and what it issues."""

from __future__ import annotations

import datetime
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from twolane.security.certs import CertsError, init, issue, renew
from twolane.security.tls import TlsFiles, client_context


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(path: Path) -> list[str]:
    extension = read(path).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in extension.value]


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
        (["boss/a"], "'boss' is no role"),
        (["operator/alice"], "operator/alice is no server: leave --host out"),
    ],
)
def test_what_cannot_be_issued_is_refused(tmp_path: Path, what: list[str], why: str) -> None:
    init(tmp_path)
    with pytest.raises(CertsError, match=why):
        issue(tmp_path, what, hosts=["gpu-a"] if "operator" in what[0] else [])


def test_a_host_must_be_a_name_or_an_address(tmp_path: Path) -> None:
    init(tmp_path)
    with pytest.raises(CertsError, match="--host gpu a is no name"):
        issue(tmp_path, ["router/r"], hosts=["gpu a"])


def test_certificates_of_another_authority_are_not_renewed(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        init(tmp_path / name)
    (worker,) = issue(tmp_path / "theirs", ["worker/a"])
    for path in (worker.cert, worker.key):
        path.rename(tmp_path / "ours" / path.name)
    with pytest.raises(CertsError, match="not issued by the authority beside it"):
        renew(tmp_path / "ours")


def test_without_an_authority_the_refusal_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(CertsError, match="`twolane certs init`"):
        issue(tmp_path, ["worker/a"])
    with pytest.raises(CertsError, match="`twolane certs init`"):
        renew(tmp_path)
