"""`python -m twolane.deploy down`: stops a cluster on several hosts through their agents, or one on
Ray."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import click

from twolane.cli.common import json_option
from twolane.cli.times import Seconds
from twolane.cli.waiting import telling
from twolane.deploy.agent.launcher import AgentLauncher
from twolane.deploy.cli.over_ray import down_over_ray
from twolane.deploy.cli.own_stdout import take_over
from twolane.deploy.cli.start_failed import NOT_PROVEN
from twolane.deploy.errors import DeposedError, NoAgentError, NotProvenError, StartError
from twolane.deploy.spec.cluster_spec import HostSpec
from twolane.deploy.spec.resolve import resolve
from twolane.deploy.spec.secret import secret_by_hand, secret_option
from twolane.deploy.spec.settings import TimingSpec
from twolane.deploy.spec.topology import TimingOptions
from twolane.deploy.spec.topology_file import find_topology, read_topology
from twolane.security.credentials import Credentials

_INTERRUPTED = 130  # an exit code: what was asked to stop goes on stopping


@click.command()
@click.option("--topology", metavar="FILE", help="Names the hosts.")
@click.option("--ray-address", metavar="auto|HOST:PORT", help="Names the Ray.")
@click.option("--cluster", default="default", help="The cluster's name on that Ray.")
@click.option("--timeout-s", type=Seconds(), default=120.0, show_default=True)
@secret_option("~/.twolane/secret")
@json_option
def down(
    *,
    topology: str | None,
    ray_address: str | None,
    cluster: str,
    timeout_s: float,
    secret_file: Path | None,
    as_json: bool,
) -> None:
    """End everything that the agents of these hosts run. Agents keep running, except on Ray."""
    if (topology is None) == (ray_address is None):
        raise click.UsageError("name either a --topology, or a --ray-address")
    try:
        if topology is None:
            out = take_over(sys.stdout, others=sys.stderr.fileno())
            with telling(_ends):
                _end_on_ray(str(ray_address), cluster)
            click.echo(_stopped(cluster, as_json=as_json), file=out)
            return
        given = read_topology(find_topology(topology))
        hosts = [host.spec() for host in given.hosts]
        if not hosts:
            raise StartError(f"{topology} names no hosts")
        credentials = replace(resolve(given).credentials, secret=secret_by_hand(secret_file))
        with telling(_ends):
            asyncio.run(_end_all(hosts, credentials, _grace_s(given.timing), timeout_s))
    except (StartError, DeposedError) as error:
        raise click.ClickException(str(error)) from error
    except NotProvenError as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(NOT_PROVEN) from error
    except KeyboardInterrupt:
        click.echo(err=True)
        raise SystemExit(_INTERRUPTED) from None
    click.echo(_stopped(topology, as_json=as_json))


def _stopped(cluster: str, *, as_json: bool) -> str:
    """As `twolane down` tells it of this machine's cluster."""
    if not as_json:
        return "stopped"
    return json.dumps({"schema": "twolane.Stopped", "stopped": cluster}, indent=2)


def _ends() -> str:
    return "running answers and processes end"


def _end_on_ray(address: str, cluster: str) -> None:
    """Stop the cluster of that name on Ray. Raises `StartError`, and `NotProvenError` with the
    names of the hosts that do not answer."""
    silent = down_over_ray(address, cluster)
    if silent:
        raise NotProvenError(f"what ran on {', '.join(silent)} may still run: silent")


async def _end_all(
    hosts: list[HostSpec], credentials: Credentials, grace_s: float, within_s: float
) -> None:
    """Stop every process on the hosts. A launcher that runs finds its term superseded, and exits.
    Raises `NotProvenError` with the names of the hosts that do not answer or fail, and
    `DeposedError`."""
    try:
        async with asyncio.timeout(within_s):
            silent = await _silent_after_all(hosts, credentials, grace_s)
    except TimeoutError:
        names = ", ".join(host.name for host in hosts)
        raise NotProvenError(f"still running after {within_s:g} s, on {names}") from None
    if silent:
        raise NotProvenError(f"what ran on {', '.join(silent)} may still run: silent")


async def _silent_after_all(
    hosts: list[HostSpec], credentials: Credentials, grace_s: float
) -> list[str]:
    """End all that answers. Returns the others."""
    try:
        launcher = await AgentLauncher.connected(hosts, credentials)
    except NoAgentError:
        return [host.name for host in hosts]
    try:
        await launcher.end_others((), grace_s)
        return [host.name for host in launcher.hosts() if host.state != "up"]
    finally:
        await launcher.close()


def _grace_s(timing: TimingOptions) -> float:
    return TimingSpec().stop_grace_s if timing.stop_grace_s is None else timing.stop_grace_s
