"""Certificates for the processes of a cluster on fake hosts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.fake_hosts import HERE, Host
from twolane.security import certs

_OF_NAME = "/tmp/certs/{name}"
FLAGS = f"--tls-ca /tmp/certs/ca.crt --tls-cert '{_OF_NAME}.crt' --tls-key '{_OF_NAME}.key'"


def give_certificates(hosts: Sequence[Host], workers: Sequence[str]) -> None:
    """To every host those of the controller, the router, the agents, which are called as their
    hosts are, and these workers; in /tmp/certs, as `FLAGS` say."""
    names = ["controller/controller", "router/router-0"]
    names += [f"agent/{host.name}" for host in hosts] + [f"worker/{name}" for name in workers]
    with tempfile.TemporaryDirectory() as folder:
        certs.init(Path(folder))
        addresses = [HERE, "127.0.0.1", *(host.ip for host in hosts)]
        issued = certs.issue(Path(folder), names, hosts=addresses)
        for host in hosts:
            there = host.root / "tmp/certs"
            there.mkdir(exist_ok=True)
            shutil.copy(Path(folder) / "ca.crt", there)
            for identity, its in zip(names, issued, strict=True):
                name = identity.rpartition("/")[2]
                shutil.copy(its.cert, there / f"{name}.crt")
                shutil.copy(its.key, there / f"{name}.key")
