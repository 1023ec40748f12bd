"""Requests whose keys stay where they were made, and what an authority signs."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from tests.twolane.security.reading import contents, mode, names, read
from twolane.security.cert_files import CertsError
from twolane.security.certs import (
    Requested,
    init,
    issue,
    read_request,
    renew,
    request,
    sign,
)
from twolane.security.tls import TlsFiles, client_context

PEM = serialization.Encoding.PEM


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """A folder on another host, and an authority in `tmp_path / "ca"`."""
    init(tmp_path / "ca")
    return tmp_path / "far"


def brought(tmp_path: Path, path: Path) -> Path:
    """A copy of it beside the authority."""
    copy = tmp_path / "ca" / path.name
    copy.write_bytes(path.read_bytes())
    return copy


def test_a_request_becomes_a_certificate_and_its_key_stays_where_it_is(
    tmp_path: Path, far: Path
) -> None:
    (asked,) = request(far, ["agent/node-a"], hosts=["10.0.0.5"])
    assert mode(asked.key) == 0o600
    path = brought(tmp_path, asked.request)
    assert read_request(path) == Requested(
        "agent/node-a", path, path.with_suffix(".key"), ("10.0.0.5",)
    )
    (signed,) = sign(tmp_path / "ca", [path])
    assert (signed.identity, signed.hosts) == ("agent/node-a", ("10.0.0.5",))
    assert names(signed.cert) == ["spiffe://twolane/agent/node-a", "agent.twolane", "10.0.0.5"]
    files = {each.name for each in (tmp_path / "ca").iterdir()}
    assert files == {"ca.crt", "ca.key", "node-a.csr", "node-a.crt"}
    context = client_context(TlsFiles(tmp_path / "ca/ca.crt", signed.cert, asked.key))
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_a_certificate_that_was_requested_is_renewed_for_the_same_key(
    tmp_path: Path, far: Path
) -> None:
    (asked,) = request(far, ["worker/a"])
    (old,) = sign(tmp_path / "ca", [brought(tmp_path, asked.request)], days=1)
    before = read(old.cert)
    (new,) = renew(tmp_path / "ca")
    assert new.expires > old.expires
    assert read(new.cert).public_key() == before.public_key()
    assert not (tmp_path / "ca/a.key").exists()


def test_a_request_overwrites_no_key(far: Path) -> None:
    request(far, ["worker/a"])
    before = {path: path.read_bytes() for path in far.iterdir()}
    with pytest.raises(CertsError, match=r"exists and is not overwritten"):
        request(far, ["worker/a"])
    assert {path: path.read_bytes() for path in far.iterdir()} == before


def csr(key: object, *uris: str) -> x509.CertificateSigningRequest:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    return builder.add_extension(names, critical=False).sign(key, hashes.SHA256())  # type: ignore[arg-type]


WORKER = "spiffe://twolane/worker/a"


@pytest.mark.parametrize(
    ("uris", "why"),
    [
        ([], "is not a request"),
        ([WORKER, "spiffe://twolane/operator/b"], "is not a request"),
        (["spiffe://twolane/boss/a"], "'boss' is not a role"),
    ],
)
def test_a_request_for_anything_but_one_identity_is_refused(
    tmp_path: Path, far: Path, uris: list[str], why: str
) -> None:
    path = tmp_path / "ca/a.csr"
    path.write_bytes(csr(ec.generate_private_key(ec.SECP256R1()), *uris).public_bytes(PEM))
    with pytest.raises(CertsError, match=why):
        sign(tmp_path / "ca", [path])


def test_a_request_for_another_kind_of_key_is_refused(tmp_path: Path, far: Path) -> None:
    path = tmp_path / "ca/a.csr"
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    path.write_bytes(csr(weak, WORKER).public_bytes(PEM))
    with pytest.raises(CertsError, match="not ECDSA P-256"):
        sign(tmp_path / "ca", [path])


def test_a_request_called_as_the_authority_does_not_replace_it(tmp_path: Path, far: Path) -> None:
    (asked,) = request(far, ["worker/a"])
    before, path = (tmp_path / "ca/ca.crt").read_bytes(), tmp_path / "ca/ca.csr"
    path.write_bytes(asked.request.read_bytes())
    with pytest.raises(CertsError, match="would replace an authority's: rename the file"):
        read_request(path)
    with pytest.raises(CertsError, match="would replace an authority's: rename the file"):
        sign(tmp_path / "ca", [path])
    assert (tmp_path / "ca/ca.crt").read_bytes() == before


def test_a_request_that_was_changed_on_its_way_is_refused(tmp_path: Path, far: Path) -> None:
    path = tmp_path / "ca/a.csr"
    der = csr(ec.generate_private_key(ec.SECP256R1()), WORKER).public_bytes(
        serialization.Encoding.DER
    )
    changed = x509.load_der_x509_csr(der.replace(b"worker/a", b"worker/b"))
    path.write_bytes(changed.public_bytes(PEM))
    with pytest.raises(CertsError, match="not signed with the key that it is for"):
        sign(tmp_path / "ca", [path])


def test_of_two_requests_none_is_signed_if_one_cannot_be(tmp_path: Path, far: Path) -> None:
    asked = request(far, ["worker/a", "worker/b"])
    asked[1].request.with_suffix(".crt").mkdir()
    before = contents(far)
    with pytest.raises(CertsError, match=r"b\.crt cannot be replaced: it is a directory"):
        sign(tmp_path / "ca", [each.request for each in asked])
    assert contents(far) == before


def test_a_requested_certificate_of_another_authority_is_not_renewed(
    tmp_path: Path, far: Path
) -> None:
    (asked,) = request(far, ["worker/a"])
    init(tmp_path / "ours")
    (theirs,) = sign(tmp_path / "ca", [brought(tmp_path, asked.request)])
    for path in (theirs.cert, theirs.cert.with_suffix(".csr")):
        path.rename(tmp_path / "ours" / path.name)
    before = (tmp_path / "ours/a.crt").read_bytes()
    with pytest.raises(CertsError, match="not issued by the authority beside it"):
        renew(tmp_path / "ours")
    assert (tmp_path / "ours/a.crt").read_bytes() == before


def test_a_request_beside_another_key_is_not_signed(tmp_path: Path, far: Path) -> None:
    (issued,) = issue(tmp_path / "ca", ["worker/a"])
    (asked,) = request(far, ["worker/a"])
    before = issued.cert.read_bytes()
    path = brought(tmp_path, asked.request)
    with pytest.raises(CertsError, match=r"a\.csr is not for the key beside it, .*a\.key"):
        sign(tmp_path / "ca", [path])
    issued.key.write_text("not a key")
    with pytest.raises(CertsError, match=r"a\.key cannot be read"):
        sign(tmp_path / "ca", [path])
    assert issued.cert.read_bytes() == before
    (signed,) = sign(tmp_path / "ca", [asked.request])  # beside its own key
    assert signed.key == asked.key
