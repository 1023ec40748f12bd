"""Certificates for the processes of a cluster on fake hosts, and for the tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.fake_hosts import HERE, Host
from twolane.security import certs
from twolane.security.tls import TlsFiles

_FOLDER = "/tmp/certs"
_OF_NAME = f"{_FOLDER}/{{name}}"
FLAGS = f"--tls-ca {_FOLDER}/ca.crt --tls-cert '{_OF_NAME}.crt' --tls-key '{_OF_NAME}.key'"


def give_certificates(
    hosts: Sequence[Host], workers: Sequence[str], routers: Sequence[str] = ("router-0",)
) -> None:
    """To every host those of the controller, the routers, the agents, which are called as their
    hosts are, these workers, a client and an operator; in /tmp/certs, as `FLAGS` say."""
    names = ["controller/controller", *(f"router/{name}" for name in routers)]
    names += [f"agent/{host.name}" for host in hosts] + [f"worker/{name}" for name in workers]
    with tempfile.TemporaryDirectory() as folder:
        certs.init(Path(folder))
        addresses = [HERE, "127.0.0.1", *(host.ip for host in hosts)]
        callers = ["client/tests/client", "operator/operator"]
        issued = certs.issue(Path(folder), names, hosts=addresses)
        issued += certs.issue(Path(folder), callers)
        for host in hosts:
            there = host.root / _FOLDER[1:]
            there.mkdir(exist_ok=True)
            shutil.copy(Path(folder) / "ca.crt", there)
            for identity, its in zip([*names, *callers], issued, strict=True):
                name = identity.rpartition("/")[2]
                shutil.copy(its.cert, there / f"{name}.crt")
                shutil.copy(its.key, there / f"{name}.key")


def files_of(host: Host, name: str) -> TlsFiles:
    """A certificate that the host has, as files that the tests can read."""
    there = host.root / _FOLDER[1:]
    return TlsFiles(there / "ca.crt", there / f"{name}.crt", there / f"{name}.key")
