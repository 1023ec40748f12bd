"""What the chart runs is there: commands and their options, files that probes look at, paths that
they ask for, and a topology that can be read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from ray.scripts.scripts import cli as ray_cli

from tests.deploy.agent.test_agent import agent
from tests.deploy.chart.rendered import (
    SETS,
    containers,
    of_kind,
    rendered,
    templates,
    topology,
)
from twolane.deploy.__main__ import main as deploy
from twolane.deploy.cli.up_command import up
from twolane.deploy.spec.parse_topology import parse_topology
from twolane.security.access import HTTP_OPEN

all_sets = pytest.mark.parametrize("name", SETS)


def unknown(command: click.Command, arguments: list[str]) -> str:
    """What of the arguments the command does not have; empty: it takes them all. Nothing is
    run."""
    context = click.Context(command)
    while isinstance(command, click.Group):
        name = arguments[0]
        found = command.get_command(context, name)
        if found is None:
            return name
        command, arguments = found, arguments[1:]
    try:
        parser = command.make_parser(click.Context(command))
        _, left, _ = parser.parse_args(list(arguments))
    except click.UsageError as error:
        return str(error)
    takes_more = any(isinstance(each, click.Argument) for each in command.params)
    return "" if takes_more else " ".join(left)


@all_sets
def test_every_command_of_ours_takes_these_options(name: str) -> None:
    found = 0
    for title, container in containers(name):
        arguments = [str(each) for each in container.get("args", ())]
        if container.get("command") == ["python"] and arguments[:2] == ["-m", "twolane.deploy"]:
            assert unknown(deploy, arguments[2:]) == "", title
            found += 1
        elif container.get("command") == ["ray"]:
            end = arguments.index("--")
            assert unknown(ray_cli, arguments[:end]) == "", title
            assert arguments[end + 1 : end + 3] == ["twolane", "up"]
            assert unknown(up, arguments[end + 3 :]) == "", title
            found += 1
    assert found


def test_an_option_that_is_not_there_is_noticed() -> None:
    assert "--drain" in unknown(deploy, ["agent", "--drain=3", "--host-uid=3"])
    assert unknown(deploy, ["agents"]) == "agents"
    assert unknown(deploy, ["controller", "--topology=x", "y"]) == "y"


@pytest.mark.parametrize("name", [name for name in SETS if name.startswith("kuberay")])
def test_ray_knows_its_parameters(name: str) -> None:
    (cluster,) = of_kind("RayCluster", name)
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        parameters: dict[str, Any] = group["rayStartParams"]
        assert all(isinstance(value, str) for value in parameters.values())
        flags = [
            f"--{key}" if value == "true" else f"--{key}={value}"
            for key, value in parameters.items()
        ]
        assert unknown(ray_cli, ["start", *flags]) == ""


@all_sets
def test_the_controllers_topology_can_be_read(name: str) -> None:
    value = yaml.safe_load(topology(name))
    parsed = parse_topology(value)
    names = {m["metadata"]["name"]: m["spec"] for m in rendered(name) if m["kind"] == "StatefulSet"}
    for host in parsed.hosts:
        title, _, number = host.name.rpartition("-")
        assert int(number) < names[title]["replicas"]
        assert host.agent == f"{host.name}.llm-hosts.prod.svc.cluster.local:7210"
    assert (parsed.tls_ca == "") == parsed.insecure


@pytest.mark.parametrize("name", ["plain", "plain-gpus", "plain-scaled", "plain-keda"])
def test_every_process_finds_its_certificate(name: str) -> None:
    """In the pods where it may run. With cert-manager, each is issued, for its role and name."""
    value = yaml.safe_load(topology(name))
    mounted: dict[str, set[str]] = {}
    for manifest in rendered(name):
        if manifest["kind"] not in ("StatefulSet", "Deployment"):
            continue
        (tls,) = [v for v in manifest["spec"]["template"]["spec"]["volumes"] if v["name"] == "tls"]
        paths = {i["path"] for s in tls["projected"]["sources"] for i in s["secret"]["items"]}
        assert "ca.crt" in paths
        names = {path.removesuffix(".crt") for path in paths if path.endswith(".crt")} - {"ca"}
        assert {f"{each}.key" for each in names} <= paths
        mounted[manifest["metadata"]["name"]] = names
    assert mounted["llm-controller"] == {"controller"}
    for host in value["hosts"]:
        assert host["name"] in mounted[host["name"].rpartition("-")[0]]
    routers = [host for host in value["hosts"] if host["routers"]]
    assert {f"router-{i}" for i in range(len(routers))} <= mounted["llm-router"]
    for title, names in mounted.items():
        if title not in ("llm-controller", "llm-router"):
            assert workers_on(title, value) <= names, title
    issued = {
        m["spec"]["secretName"].removeprefix("llm-tls-"): m["spec"]
        for m in of_kind("Certificate", name)
        if "uris" in m["spec"]
    }
    if issued:
        assert set().union(*mounted.values()) <= {*issued}
        for title, spec in issued.items():
            (uri,) = spec["uris"]
            role = uri.split("/")[3]
            assert uri == f"spiffe://twolane/{role}/{title}"
            assert f"{role}.twolane" in spec["dnsNames"]


def test_every_process_on_ray_finds_its_certificate() -> None:
    """Ray decides which pod is which host, so each has the certificates of its whole set."""
    name = "kuberay-scaled"
    value = yaml.safe_load(topology(name))
    mounted = {title: certificates_in(its) for title, its in templates(name)}
    issued = {
        m["spec"]["secretName"].removeprefix("llm-tls-"): m["spec"]["uris"][0].split("/")[3]
        for m in of_kind("Certificate", name)
        if "uris" in m["spec"]
    }
    assert mounted["llm-head"] == {"controller", "llm-head"}
    assert issued.items() >= {"controller": "controller", "llm-head": "agent"}.items()
    for its in value["host_sets"]:
        hosts = {f"{its['name']}-{i}" for i in range(its["most"])}
        workers = workers_on(its["name"], value)
        assert hosts | workers <= mounted[f"llm-{its['name']}"]
        assert {issued[host] for host in hosts} == {"agent"}
        assert {issued[worker] for worker in workers} == {"worker"}
    routers = {its["name"] for its in value["hosts"]}
    assert routers | {f"router-{i}" for i in range(len(routers))} == mounted["llm-router"]
    assert set().union(*mounted.values()) <= {*issued}


def certificates_in(template: dict[str, Any]) -> set[str]:
    paths = {
        item["path"]
        for volume in template["spec"].get("volumes", ())
        if volume["name"] == "tls"
        for source in volume["projected"]["sources"]
        for item in source["secret"]["items"]
    }
    return {path.removesuffix(".crt") for path in paths if path.endswith(".crt")} - {"ca"}


def workers_on(title: str, value: dict[str, Any]) -> set[str]:
    """Those that may run in the pods of that StatefulSet. Without host sets, all may."""
    pools = next((its["pools"] for its in value.get("host_sets", ()) if its["name"] == title), None)
    found = set()
    for pool in value["pools"]:
        name = pool.get("name", pool["role"])
        if pools is None or name in pools:
            found |= {f"{name}-{i}" for i in range(pool["workers"])}
    return found


@all_sets
def test_requests_for_health_go_to_an_open_page(name: str) -> None:
    for title, container in containers(name):
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            for kind in ("httpGet", "tcpSocket"):
                asked = container.get(probe, {}).get(kind)
                if asked is not None:
                    assert asked["port"] in ports, title
                    assert asked.get("path", "/health") in HTTP_OPEN


def run_probe(container: dict[str, Any], probe: str, state: Path) -> bool:
    """Whether a probe that looks at files succeeds, with another state folder."""
    command = [
        part.replace("/var/lib/twolane", str(state)) for part in container[probe]["exec"]["command"]
    ]
    return subprocess.run(command, check=False).returncode == 0


async def test_probes_of_an_agent_see_what_it_writes(tmp_path: Path) -> None:
    container = next(its for title, its in containers("plain") if title == "llm-workers/agent")
    (tmp_path / "agent").symlink_to("state")
    assert not run_probe(container, "startupProbe", tmp_path)
    assert not run_probe(container, "livenessProbe", tmp_path)
    async with agent(tmp_path):
        assert run_probe(container, "startupProbe", tmp_path)
        assert run_probe(container, "livenessProbe", tmp_path)
        assert not run_probe(container, "readinessProbe", tmp_path)
    heartbeat = tmp_path / "state" / "heartbeat"
    an_hour_ago = heartbeat.stat().st_mtime - 3600
    os.utime(heartbeat, (an_hour_ago, an_hour_ago))
    assert not run_probe(container, "livenessProbe", tmp_path)
    (tmp_path / "state" / "ready").write_text("decode-0\n")
    assert run_probe(container, "readinessProbe", tmp_path)
