"""The TLS files that options name."""

from __future__ import annotations

from pathlib import Path

from twolane.deploy.errors import StartError
from twolane.security.tls import TlsFiles

TLS_OPTIONS = ("tls_ca", "tls_cert", "tls_key")


def tls_files(ca: str, cert: str, key: str) -> TlsFiles | None:
    """Absolute paths of the TLS files, as processes are started in other directories; None if none
    is named. Raises `StartError` if only some of the three are named."""
    paths = dict(zip(TLS_OPTIONS, (ca, cert, key), strict=True))
    if not any(paths.values()):
        return None
    if missing := [name for name, path in paths.items() if not path]:
        raise StartError(f"TLS needs tls_ca, tls_cert and tls_key; {', '.join(missing)} is missing")
    return TlsFiles(*(Path(path).expanduser().absolute() for path in paths.values()))
