"""`python -m deploy router | worker`: one process of a cluster. A whole one: `deploy.up`."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import sys
from typing import Any

import click

from deploy.child import run_process
from deploy.errors import StartError
from deploy.options import (
    HTTP_OPTIONS,
    LIMIT_OPTIONS,
    LOG_OPTIONS,
    MODEL_OPTIONS,
    ROUTER_OPTIONS,
    TIMING_OPTIONS,
    TRANSPORT_OPTIONS,
    http_port,
    limits_spec,
    model_spec,
    timing_spec,
    with_options,
)
from deploy.orphan import die_with_parent
from deploy.scratch import make_scratch, remove_stale_scratch
from deploy.secret import secret_by_hand, secret_option
from deploy.spec import (
    DECODE,
    PREFILL,
    TRANSPORTS,
    ModelSpec,
    RouterSpec,
    WorkerSpec,
    new_epoch,
    unsummed,
)
from deploy.spec_json import from_json
from twolane.config import SOCKET_NAME

_PORT = click.IntRange(0, 65535)
_ID_HELP = "Unique in the cluster.  [default: of host and process]"
_ROUTER_HELP = "Announce to these: a router's worker port.  [default: 127.0.0.1:7201]"
CHILD_OPTIONS = [
    click.option("--host", default="127.0.0.1", show_default=True),
    secret_option("~/.twolane/secret, made where there is none"),
    *LOG_OPTIONS,
    click.option("--spec-from-stdin", is_flag=True, hidden=True),  # JSON; nothing else counts then
    click.option("--ready-fd", type=int, hidden=True),
    click.option("--parent-pid", type=int, hidden=True),
]


@click.group()
def main() -> None:
    """Start one process of a cluster."""


@main.command()
@click.option("--router-id", help=_ID_HELP)
@click.option("--port", type=_PORT, default=7200, show_default=True)
@click.option(
    "--worker-host",
    default="127.0.0.1",
    show_default=True,
    help="Where workers announce themselves, showing the secret.",
)
@click.option("--worker-port", type=_PORT, default=7201, show_default=True)
@click.option("--metrics-port", type=_PORT, default=0, help="Of its metrics.  [default: any]")
@click.option(
    "--admin-socket",
    metavar="PATH",
    help="Where operators come in.  [default: in a new temporary folder]",
)
@with_options(HTTP_OPTIONS)
@with_options(ROUTER_OPTIONS)
@with_options(MODEL_OPTIONS)
@with_options(LIMIT_OPTIONS)
@with_options(TIMING_OPTIONS)
@with_options(CHILD_OPTIONS)
def router(**given: Any) -> None:
    """Run one router."""
    if given["parent_pid"]:
        die_with_parent(given["parent_pid"])
    if given["spec_from_stdin"]:
        spec = from_json(RouterSpec, sys.stdin.read())
    else:
        spec = RouterSpec(
            router_id=given["router_id"] or _own_id("router"),
            model=_model(given),
            secret=_secret(given),
            generation_config=given["generation_config"],
            host=given["host"],
            port=given["port"],
            worker_host=given["worker_host"],
            worker_port=given["worker_port"],
            metrics_port=given["metrics_port"],
            admin_socket=given["admin_socket"] or _own_socket(),
            log_level=given["log_level"],
            http_port=http_port(given),
            timing=timing_spec(given),
            limits=limits_spec(given),
        )
    run_process(spec, given["ready_fd"])


@main.command()
@click.option("--worker-id", help=_ID_HELP)
@click.option("--role", type=click.Choice([PREFILL, DECODE, "both"]), default="both")
@click.option("--router", "routers", multiple=True, metavar="HOST:PORT", help=_ROUTER_HELP)
@click.option("--port", type=_PORT, default=0)
@click.option("--metrics-port", type=_PORT, default=0, help="Of its metrics.  [default: any]")
@with_options(TRANSPORT_OPTIONS)
@with_options(MODEL_OPTIONS)
@with_options(LIMIT_OPTIONS)
@with_options(TIMING_OPTIONS)
@with_options(CHILD_OPTIONS)
def worker(**given: Any) -> None:
    """Run one worker, with one role or both."""
    if given["parent_pid"]:
        die_with_parent(given["parent_pid"])
    if given["spec_from_stdin"]:
        spec = from_json(WorkerSpec, sys.stdin.read())
    else:
        transports = given["transports"] or TRANSPORTS
        if refusal := unsummed(transports, given["checksums"]):
            raise click.UsageError(refusal)
        spec = WorkerSpec(
            worker_id=given["worker_id"] or _own_id("worker"),
            epoch=new_epoch(),
            secret=_secret(given),
            roles=(PREFILL, DECODE) if given["role"] == "both" else (given["role"],),
            model=_model(given),
            routers=given["routers"] or ("127.0.0.1:7201",),
            host=given["host"],
            port=given["port"],
            checksums=given["checksums"],
            sockets=given["sockets"],
            metrics_port=given["metrics_port"],
            log_level=given["log_level"],
            transports=transports,
            timing=timing_spec(given),
            limits=limits_spec(given),
        )
    run_process(spec, given["ready_fd"])


def _own_id(kind: str) -> str:
    """worker-node7-4711"""
    return f"{kind}-{socket.gethostname()}-{os.getpid()}"


def _own_socket() -> str:
    """Where the client looks for it."""
    remove_stale_scratch()
    scratch = make_scratch()
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return str(scratch / SOCKET_NAME)


def _secret(given: dict[str, Any]) -> str:
    try:
        return secret_by_hand(given["secret_file"])
    except StartError as error:
        raise click.ClickException(str(error)) from error


def _model(given: dict[str, Any]) -> ModelSpec:
    try:
        return model_spec(given)
    except StartError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main(prog_name="python -m deploy")
