"""Hosts in a topology."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.topologies import read, refusal
from twolane.deploy.errors import StartError
from twolane.deploy.spec.parse_topology import parse_topology
from twolane.deploy.spec.resolve import resolve


def test_hosts_are_reached_by_agents_alone_and_have_names_of_their_own(tmp_path: Path) -> None:
    host = "{name: a, agent: '10.0.0.1:7210'}"
    told = refusal(f"hosts: [{host}]\npools: [{{role: both}}]\n", tmp_path)
    assert told == ["t.yaml:1: launcher is ray, which reaches no hosts: make it agents"]
    twice = refusal(
        f"launcher: agents\nhosts:\n  - {host}\n  - {host}\npools: [{{role: both}}]\n", tmp_path
    )
    assert twice == [
        "t.yaml:4: hosts[0] has the name a already",
        "t.yaml:4: hosts[0] has the agent 10.0.0.1:7210 already",
    ]
    with pytest.raises(StartError, match="launcher is agents: name the hosts that have one"):
        resolve(parse_topology({"launcher": "agents", "pools": [{"role": "both"}]}))


def test_beside_an_existing_ray_hosts_are_for_routers(tmp_path: Path) -> None:
    file = "launcher: ray\nray: {address: auto}\npools: [{role: both}]\nhosts:\n"
    assert refusal(file + "  - {name: a, agent: 'a:7210', routers: 1}\n", tmp_path) == [
        "t.yaml:5: beside a Ray, hosts are for routers: seats must be 0 and gpus []"
    ]
    host = "  - {name: a, agent: 'a:7210', routers: 1, seats: 0, gpus: []}\n"
    assert [host.name for host in read(file + host, tmp_path).hosts] == ["a"]


def test_processes_of_a_host_are_where_its_agent_is(tmp_path: Path) -> None:
    topology = read(
        "launcher: agents\nhosts:\n  - {name: a, agent: '10.0.0.1:7210'}\n"
        "  - {name: b, agent: '10.0.0.2:7210', bind_host: 0.0.0.0, gpus: ['0'], seats: 2}\n"
        "pools: [{role: both}]\n",
        tmp_path,
    )
    a, b = (host.spec() for host in topology.hosts)
    assert (a.bind_host, a.advertise_host, a.gpus) == ("10.0.0.1", "", None)
    assert (b.bind_host, b.advertise_host, b.gpus, b.seats) == ("0.0.0.0", "10.0.0.2", ("0",), 2)
