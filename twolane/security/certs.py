"""Makes certificates: a certificate authority in a directory, and the certificates it issues there.

    DIR/ca.crt  ca.key          the authority; ca.key is needed only to issue and to renew
    DIR/decode-0.crt  .key      worker/decode-0
    DIR/node-a.crt  .csr        agent/node-a, whose key never left its host

Keys are ECDSA P-256. Only the owner can access the directory (0700) and the keys (0600). Only
`renew` overwrites files; it replaces each atomically. No other module needs `cryptography`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from twolane.security import nobody
from twolane.security.cert_files import CertsError, refuse_existing, replace, write
from twolane.security.identity import Identity, Role, parse_identity
from twolane.security.tls import server_name

AUTHORITY_DAYS = 3650
DAYS = 30  # for which an issued certificate is valid
_CLOCKS_S = 300  # certificates are valid from this long before now, because clocks differ
_CA, _NOBODY = "ca", "nobody"
_REQUEST = ".csr"
_PEM = serialization.Encoding.PEM
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_SERVERS = frozenset({Role.ROUTER, Role.WORKER, Role.AGENT, Role.CONTROLLER})
_ROLE_NAMES = frozenset(map(server_name, Role))
_Paths = tuple[Path, Path]  # of a certificate and its key
_Hosts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate on disk. `identity` is empty for the authority."""

    identity: str
    cert: Path
    key: Path  # for a signed request, the key's path on the host that made the request
    hosts: tuple[str, ...]
    expires: datetime.datetime


_Made = tuple[Issued, dict[Path, bytes]]  # and what its files are to contain


@dataclass(frozen=True, slots=True)
class Requested:
    """A signing request on disk for a certificate with that identity."""

    identity: str
    request: Path
    key: Path  # beside the request, on the host that made it
    hosts: tuple[str, ...]


def init(directory: Path, *, days: int = AUTHORITY_DAYS) -> Issued:
    """Make an authority. Raises `CertsError` if there is one already."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("twolane")
    cert = (
        _unsigned(name, name, key.public_key(), _after(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = _paths(directory, _CA)
    refuse_existing(paths, "issue certificates with it, or name another --dir")
    write({paths[1]: _secret_pem(key), paths[0]: cert.public_bytes(_PEM)})
    return _issued("", paths, cert)


def issue(
    directory: Path, identities: Iterable[str], *, hosts: Sequence[str] = (), days: int = DAYS
) -> list[Issued]:
    """Issue a certificate for each identity, such as `worker/decode-0` or `client/acme/alice`. None
    is valid for longer than the authority. `hosts` are the names and addresses by which clients
    reach a router. Raises `CertsError`, and then has written none of them."""
    authority = _load_authority(directory)
    made = []
    for identity, paths in _new_files(directory, identities):
        refuse_existing(paths, "`twolane certs renew` renews it")
        made.append(_new(identity, paths, tuple(hosts), days, authority))
    return _written(made, write)


def request(
    directory: Path, identities: Iterable[str], *, hosts: Sequence[str] = ()
) -> list[Requested]:
    """Make a key and a signing request for each identity. The request is sent to the authority; the
    key stays here. Raises `CertsError`, and then has written none of them."""
    wanted = _new_files(directory, identities)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    made, contents = [], dict[Path, bytes]()
    for identity, (cert, key) in wanted:
        names = x509.SubjectAlternativeName(_names(identity, tuple(hosts)))
        path = cert.with_suffix(_REQUEST)
        refuse_existing((cert, key, path), "remove it first, if nothing needs it any more")
        secret = ec.generate_private_key(ec.SECP256R1())
        builder = x509.CertificateSigningRequestBuilder().subject_name(_name(str(identity)))
        signed = builder.add_extension(names, critical=False).sign(secret, hashes.SHA256())
        contents |= {key: _secret_pem(secret), path: signed.public_bytes(_PEM)}
        made.append(Requested(str(identity), path, key, tuple(hosts)))
    write(contents)
    return made


def read_request(path: Path) -> Requested:
    """Read a signing request. The signer must make sure that its sender may have that
    identity. Raises `CertsError` if the request names no identity of twolane, or is not signed with
    its own key."""
    identity, hosts, _ = _read_request(path)
    return Requested(str(identity), path, path.with_suffix(".key"), hosts)


def sign(directory: Path, paths: Iterable[Path], *, days: int = DAYS) -> list[Issued]:
    """Sign requests with the authority in `directory`. Each certificate is written beside its
    request and replaces an earlier one. Raises `CertsError`, and then has written none, unless a
    rename failed."""
    authority = _load_authority(directory)
    return _written([_sign(path, days, authority) for path in paths], replace)


def write_nobody(directory: Path) -> tuple[Path, Path]:
    """Write the certificate that callers without their own present, and its public key file
    (`twolane.security.nobody`). Raises `CertsError`."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    cert, key = paths = _paths(directory, _NOBODY)
    refuse_existing(paths, "name another --dir")
    write({key: nobody.KEY, cert: nobody.CERT})
    return cert, key


def renew(directory: Path, names: Sequence[str] = (), *, days: int = DAYS) -> list[Issued]:
    """Replace the keys and certificates with these file names, or all if none is named. One that
    was requested keeps its key: its request is signed again. Processes use the new files from their
    next handshake. Raises `CertsError`, and then has replaced none, unless a rename failed."""
    authority = _load_authority(directory)
    found = sorted(p.stem for p in directory.glob("*.crt") if p.stem != _CA and not _is_public(p))
    missing = [name for name in names if name not in found]
    if missing:
        there = ", ".join(found) or "none"
        raise CertsError(f"{directory} has no {', '.join(missing)}; certificates there: {there}")
    if not found:
        raise CertsError(f"{directory} has nothing to renew: no certificate was issued there")
    made = [_renew(_paths(directory, name), days, authority) for name in names or found]
    return _written(made, replace)


@dataclass(frozen=True, slots=True)
class _Authority:
    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def _sign(path: Path, days: int, by: _Authority) -> _Made:
    identity, hosts, key = _read_request(path)
    paths = path.with_suffix(".crt"), path.with_suffix(".key")
    _refuse_other_key(paths[1], key, path)
    cert = _leaf(identity, hosts, days, key, by)
    return _issued(str(identity), paths, cert), {paths[0]: cert.public_bytes(_PEM)}


def _refuse_other_key(beside: Path, key: ec.EllipticCurvePublicKey, request_path: Path) -> None:
    if not beside.exists():
        return
    try:
        fits = _read_key(beside).public_key() == key
    except (OSError, ValueError) as error:
        raise CertsError(f"{beside} cannot be read: {error}") from error
    if not fits:  # guard: another key beside
        raise CertsError(f"{request_path} is not for the key beside it, {beside}: move one of them")


def _read_request(path: Path) -> tuple[Identity, _Hosts, ec.EllipticCurvePublicKey]:
    try:
        found = x509.load_pem_x509_csr(path.read_bytes())
        identity, hosts = _named(found)
        key = found.public_key()
    except OSError as error:
        raise CertsError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, x509.ExtensionNotFound) as error:
        raise CertsError(f"{path} is not a request of `twolane certs request`: {error}") from error
    if not found.is_signature_valid:  # guard: own key
        raise CertsError(f"{path} is not signed with the key that it is for")
    if not (isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == ec.SECP256R1.name):
        raise CertsError(f"{path} is for a key that is not ECDSA P-256")
    if path.stem == _CA:
        raise CertsError(f"{path}: its certificate would replace an authority's: rename the file")
    _names(identity, hosts)
    return identity, hosts, key


def _renew(paths: _Paths, days: int, by: _Authority) -> _Made:
    try:
        old = x509.load_pem_x509_certificate(paths[0].read_bytes())
        old.verify_directly_issued_by(by.cert)
        identity, hosts = _named(old)
    except OSError as error:
        raise CertsError(f"{paths[0]} cannot be read: {error.strerror}") from error
    except (ValueError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise CertsError(
            f"{paths[0]} was not issued by the authority beside it: renew it where it was issued"
        ) from error
    if (asked := paths[0].with_suffix(_REQUEST)).exists():
        return _sign(asked, days, by)
    return _new(identity, paths, hosts, days, by)


def _new(identity: Identity, paths: _Paths, hosts: _Hosts, days: int, by: _Authority) -> _Made:
    """The key comes first, and is replaced first: a process that reads the files in between finds
    that they do not match, and keeps those it has."""
    key = ec.generate_private_key(ec.SECP256R1())
    cert = _leaf(identity, hosts, days, key.public_key(), by)
    files = {paths[1]: _secret_pem(key), paths[0]: cert.public_bytes(_PEM)}
    return _issued(str(identity), paths, cert), files


def _leaf(
    identity: Identity, hosts: _Hosts, days: int, key: ec.EllipticCurvePublicKey, by: _Authority
) -> x509.Certificate:
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    usages += [ExtendedKeyUsageOID.SERVER_AUTH] * (identity.role in _SERVERS)
    until = min(_after(days), by.cert.not_valid_after_utc)
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key())
    return (
        _unsigned(_name(str(identity)), by.cert.subject, key, until)
        .add_extension(authority_key, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(_names(identity, hosts)), critical=False)
        .sign(by.key, hashes.SHA256())
    )


def _names(identity: Identity, hosts: _Hosts) -> list[x509.GeneralName]:
    """The alternative names of a certificate: its identity and, for a server, its hosts. Raises
    `CertsError`."""
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    if identity.role in _SERVERS:
        return [*names, x509.DNSName(server_name(identity.role)), *map(_host, hosts)]
    if hosts:
        raise CertsError(f"{identity} is not a server: leave --host out")
    return names


def _unsigned(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_after(0) - datetime.timedelta(seconds=_CLOCKS_S))
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ip_address(text))
    if not _HOST.fullmatch(text):
        raise CertsError(f"--host {text} is not a host name or address")
    return x509.DNSName(text)


def _named(cert: x509.Certificate | x509.CertificateSigningRequest) -> tuple[Identity, _Hosts]:
    """The identity in a certificate, and its host names and addresses, without the name of its
    role. Raises `ValueError` or `ExtensionNotFound` if it has not one identity."""
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    dns = [n for n in names.get_values_for_type(x509.DNSName) if n not in _ROLE_NAMES]
    (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    return parse_identity(uri), (*dns, *map(str, names.get_values_for_type(x509.IPAddress)))


def _new_files(directory: Path, identities: Iterable[str]) -> list[tuple[Identity, _Paths]]:
    """Each identity with its certificate and key. Raises `CertsError` if two share a file."""
    owners = {_CA: "the authority"}
    try:
        wanted = list(map(parse_identity, identities))
    except ValueError as error:
        raise CertsError(str(error)) from error
    found = []
    for identity in wanted:
        name = "-".join(part for part in (identity.tenant, identity.name) if part)
        if name in owners:
            raise CertsError(
                f"{identity} and {owners[name]} would both be {directory / name}.crt: give one "
                "another name"
            )
        owners[name] = str(identity)
        found.append((identity, _paths(directory, name)))
    return found


def _is_public(path: Path) -> bool:
    """Whether it is what `write_nobody` writes, and not the certificate of an identity."""
    return path.stem == _NOBODY and path.read_bytes() == nobody.CERT


def _paths(directory: Path, name: str) -> _Paths:
    return directory / f"{name}.crt", directory / f"{name}.key"


def _load_authority(directory: Path) -> _Authority:
    cert, key = _paths(directory, _CA)
    try:
        loaded = _Authority(x509.load_pem_x509_certificate(cert.read_bytes()), _read_key(key))
    except FileNotFoundError as error:
        raise CertsError(
            f"there is no authority in {directory}: make one with `twolane certs init`, or name "
            "its --dir"
        ) from error
    except (OSError, ValueError) as error:
        raise CertsError(f"the authority in {directory} cannot be read: {error}") from error
    if loaded.cert.public_key() != loaded.key.public_key():  # guard: the authority's key
        raise CertsError(f"{key} is not the key of {cert}")
    if loaded.cert.not_valid_after_utc <= _after(0):
        raise CertsError(f"{cert} has expired: make an authority in another --dir")
    return loaded


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Raises `OSError`, `ValueError` and `CertsError`."""
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertsError(f"{path} is not an ECDSA key")
    return key


def _after(days: int) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)


def _secret_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _written(made: Sequence[_Made], write: Callable[[Mapping[Path, bytes]], None]) -> list[Issued]:
    write({path: content for _, files in made for path, content in files.items()})
    return [issued for issued, _ in made]


def _issued(identity: str, paths: _Paths, cert: x509.Certificate) -> Issued:
    return Issued(identity, *paths, _named(cert)[1] if identity else (), cert.not_valid_after_utc)
