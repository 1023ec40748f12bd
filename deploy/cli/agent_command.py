"""`python -m twolane.deploy agent`: the process that starts and stops a host's workers and routers,
and proves their deaths."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from pathlib import Path

import click

from twolane.deploy.agent.config import AgentConfig
from twolane.deploy.agent.server import AgentServer
from twolane.deploy.cli.flags import flags
from twolane.deploy.cli.seconds import Seconds
from twolane.deploy.errors import NotProvenError, StartError
from twolane.deploy.process.child import log_to_stderr
from twolane.deploy.process.descriptors import UnfitSystemError, raise_limit
from twolane.deploy.spec.declared_options import declared
from twolane.deploy.spec.devices import visible_devices
from twolane.deploy.spec.secret import secret_by_hand, secret_option
from twolane.deploy.spec.settings import ClusterSettings
from twolane.deploy.spec.tls import TLS_OPTIONS, tls_files
from twolane.rpc.listen import ListenError, bare
from twolane.security.credentials import Credentials
from twolane.security.tls import TlsFilesError

AGENT_PORT = 7210
_TLS = (*TLS_OPTIONS, "insecure")
_NOT_TLS = [each.key for each in declared(ClusterSettings) if each.key not in _TLS]
_REFUSALS = (StartError, NotProvenError, ListenError, TlsFilesError, UnfitSystemError)
log = logging.getLogger(__name__)


@click.command()
@click.option(
    "--host-name", help="This host's name, unique in the cluster.  [default: its hostname]"
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=f"127.0.0.1:{AGENT_PORT}",
    show_default=True,
    help="Where controllers come in.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="What outlives the agent: evidence of its processes.  [default: ~/.twolane/HOST_NAME]",
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path),
    help="Where the output of its processes goes.  [default: logs, in the state folder]",
)
@click.option(
    "--gpus",
    metavar="NAMES",
    help="GPUs to give away, as CUDA_VISIBLE_DEVICES names them.  [default: all that it sees]",
)
@click.option(
    "--host-uid",
    default="",
    help="Tells this host from an earlier one of the same name, whose processes have ended, as a "
    "pod's UID does.  [default: its boot id]",
)
@click.option(
    "--drain-s",
    type=Seconds(),
    help="At SIGTERM, let its processes finish their requests for up to so long, and end them.  "
    "[default: leave them running]",
)
@flags(ClusterSettings, leave_out=_NOT_TLS)
@secret_option("~/.twolane/secret, made where there is none")
def agent(
    *,
    host_name: str | None,
    listen: str,
    state_dir: Path | None,
    log_dir: Path | None,
    gpus: str | None,
    host_uid: str,
    drain_s: float | None,
    secret_file: Path | None,
    tls_ca: str,
    tls_cert: str,
    tls_key: str,
    insecure: bool,
) -> None:
    """Run this host's agent until SIGTERM. The processes it started keep running without it, except
    with --drain-s."""
    host, _, port = listen.rpartition(":")
    if not (host and port.isdigit()):
        raise click.UsageError(f"--listen is {listen}; it must be HOST:PORT")
    name = host_name or socket.gethostname()
    state = (state_dir or Path.home() / ".twolane" / name).absolute()
    try:
        raise_limit()
        files = tls_files(tls_ca, tls_cert, tls_key)
        config = AgentConfig(
            host_name=name,
            host_uid=host_uid,
            bind_host=bare(host),
            port=int(port),
            state_dir=state,
            log_dir=(log_dir or state / "logs").absolute(),
            credentials=Credentials(
                secret=secret_by_hand(secret_file),
                tls=None if files is None else files.of(name),
                insecure=insecure,
            ),
            gpus=visible_devices() if gpus is None else tuple(filter(None, gpus.split(","))),
        )
        log_to_stderr()
        asyncio.run(_serve(config, drain_s))
    except (*_REFUSALS, ValueError) as error:
        raise click.ClickException(f"agent {name}: {error}") from error
    except OSError as error:
        where = "" if error.filename else f"; its files are in {state}"
        raise click.ClickException(f"agent {name}: {error}{where}") from error


async def _serve(config: AgentConfig, drain_s: float | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AgentServer(config) as server:
        print(f"agent {config.host_name} serves at {server.endpoint}", flush=True)
        log.info("agent %s (pid %d) serves at %s", config.host_name, os.getpid(), server.endpoint)
        broken = asyncio.create_task(server.wait())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({broken, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if broken.done():
            await broken
        if drain_s is not None:
            log.info(
                "agent %s lets its processes finish, for up to %g s", config.host_name, drain_s
            )
            await server.stop_all(drain_s)
        broken.cancel()
