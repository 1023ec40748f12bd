"""Topologies as tests write them: as a file's text, or as flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twolane.deploy.cli.up_command import up
from twolane.deploy.errors import StartError
from twolane.deploy.spec.topology import Topology
from twolane.deploy.spec.topology_file import read_topology


def read(text: str, folder: Path) -> Topology:
    path = folder / "t.yaml"
    path.write_text(text)
    return read_topology(path)


def refusal(text: str, folder: Path) -> list[str]:
    with pytest.raises(StartError) as caught:
        read(text, folder)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def said(*flags: str) -> dict[str, Any]:
    context = up.make_context("up", [*flags])
    names = {p.name for p in up.params if {*p.opts, *p.secondary_opts} & {*flags}}
    return {name: value for name, value in context.params.items() if name in names}
