"""Certificates for tests, and an address that stands for another machine's.

Everything stays on the loopback: 127.0.0.1 is this machine, and `FAR`, 127.0.0.2, an address that
other machines reach, once `far_is_far` has said so.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from twolane.rpc.listen import bare, is_local
from twolane.security import certs, credentials
from twolane.security.tls import TlsFiles

FAR = "127.0.0.2"


def far_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on `FAR` is beyond the loopback."""
    real = is_local
    monkeypatch.setattr(credentials, "is_local", lambda host: bare(host) != FAR and real(host))


@dataclass
class Pki:
    """An authority in `directory`, and what it issues on demand."""

    directory: Path
    _issued: dict[str, TlsFiles] = field(default_factory=dict)

    def __post_init__(self) -> None:
        certs.init(self.directory)

    @property
    def ca(self) -> Path:
        return self.directory / "ca.crt"

    def files(self, identity: str) -> TlsFiles:
        """Of `worker/decode-0`; servers are reached at `FAR` and localhost."""
        if identity not in self._issued:
            is_server = identity.partition("/")[0] in ("router", "worker", "agent", "controller")
            hosts = (FAR, "127.0.0.1", "localhost") if is_server else ()
            (made,) = certs.issue(self.directory, [identity], hosts=hosts)
            self._issued[identity] = TlsFiles(self.ca, made.cert, made.key)
        return self._issued[identity]

    def expired(self, identity: str) -> TlsFiles:
        """Signed by this authority, and over since yesterday."""
        yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        return self._changed(identity, "expired", not_valid_after=yesterday)

    def without_role(self) -> TlsFiles:
        """Signed by this authority, but without an identity."""
        return self._changed("viewer/nobody", "without-role", names=[x509.DNSName("somebody")])

    def _changed(
        self,
        identity: str,
        name: str,
        *,
        not_valid_after: datetime.datetime | None = None,
        names: list[x509.GeneralName] | None = None,
    ) -> TlsFiles:
        good = self.files(identity)
        old = x509.load_pem_x509_certificate(good.cert.read_bytes())
        key = serialization.load_pem_private_key(
            (self.directory / "ca.key").read_bytes(), password=None
        )
        end = not_valid_after or old.not_valid_after_utc
        builder = (
            x509.CertificateBuilder()
            .subject_name(old.subject)
            .issuer_name(old.issuer)
            .public_key(old.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(end - datetime.timedelta(days=30))
            .not_valid_after(end)
        )
        for extension in old.extensions:
            value = extension.value
            if names and isinstance(value, x509.SubjectAlternativeName):
                value = x509.SubjectAlternativeName(names)
            builder = builder.add_extension(value, critical=extension.critical)
        path = self.directory / f"{name}.pem"
        cert = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]
        path.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        return TlsFiles(self.ca, path, good.key)
