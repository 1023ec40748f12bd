"""What this process knows of itself and its machine, for a diagnosis."""

from __future__ import annotations

import asyncio
import os
import resource
import stat
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from twolane.security.tls import TlsFiles
from twolane.v1 import facts_pb2

# Of the code that runs, installed or not. The package is there: it imports none of its modules.
_VERSION: str = sys.modules["twolane"].__version__
_REACH_S = 1.0
_SHM = Path("/dev/shm")
_STDERR = 2


def process_facts(tls: TlsFiles | None) -> facts_pb2.ProcessFacts:
    """`tls`: the files of its certificate, if it has one."""
    facts = facts_pb2.ProcessFacts(
        version=_VERSION,
        unix_time=time.time(),
        open_files=len(os.listdir("/proc/self/fd")),
        most_open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        shm_free_bytes=_free_bytes(_SHM),
    )
    _add_log(facts)
    if tls is not None:
        try:
            facts.certificates.append(_certificate(tls.cert))
        except (ImportError, OSError, ValueError) as error:
            facts.notes.append(f"{tls.cert}: {error}")
    return facts


async def unreachable(endpoints: Iterable[str]) -> dict[str, str]:
    """Those of them, host:port, to which no connection can be opened from here, and why."""
    names = [*dict.fromkeys(endpoints)]
    found = await asyncio.gather(*map(_why_unreachable, names))
    return {name: why for name, why in zip(names, found, strict=True) if why}


async def _why_unreachable(endpoint: str) -> str:
    host, _, port = endpoint.rpartition(":")
    try:
        async with asyncio.timeout(_REACH_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return f"no answer within {_REACH_S:g} s"
    except (OSError, ValueError) as error:
        return str(error)
    writer.close()
    return ""


def _add_log(facts: facts_pb2.ProcessFacts) -> None:
    """Launchers have a process's output go to its log file."""
    try:
        if not stat.S_ISREG(os.fstat(_STDERR).st_mode):
            return
        facts.log_file = os.readlink(f"/proc/self/fd/{_STDERR}")
    except OSError:
        return
    facts.log_free_bytes = _free_bytes(_STDERR)


def _free_bytes(at: Path | int) -> int:
    """Of the disk of a path or of an open file; -1: it cannot be asked."""
    try:
        found = os.statvfs(at)
    except OSError:
        return -1
    return found.f_bavail * found.f_frsize


def _certificate(path: Path) -> facts_pb2.CertificateFacts:
    from cryptography import x509  # only where there are certificates

    its = x509.load_pem_x509_certificate(path.read_bytes())
    return facts_pb2.CertificateFacts(
        file=str(path), name=path.stem, not_after=its.not_valid_after_utc.timestamp()
    )
