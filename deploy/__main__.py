"""`python -m deploy router | worker`: one process of a cluster. A whole one: `deploy.up`."""

from __future__ import annotations

from typing import Any

import click

from deploy.child import run_process
from deploy.launcher import StartError
from deploy.options import (
    HTTP_OPTIONS,
    LIMIT_OPTIONS,
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

_PORT = click.IntRange(0, 65535)
_ROUTER_HELP = "Announce to these: a router's worker port.  [default: 127.0.0.1:7201]"
CHILD_OPTIONS = [
    click.option("--host", default="127.0.0.1", show_default=True),
    click.option("--spec", hidden=True, help="Everything as JSON; the other options are ignored."),
    click.option("--ready-fd", type=int, hidden=True),
    click.option("--parent-pid", type=int, hidden=True),
]


@click.group()
def main() -> None:
    """Start one process of a cluster."""


@main.command()
@click.option("--router-id", default="router-0", show_default=True)
@click.option("--port", type=_PORT, default=7200, show_default=True)
@click.option(
    "--worker-host",
    default="127.0.0.1",
    show_default=True,
    help="Where workers announce themselves. Who reaches it is believed: no clients there.",
)
@click.option("--worker-port", type=_PORT, default=7201, show_default=True)
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
    if given["spec"]:
        spec = from_json(RouterSpec, given["spec"])
    else:
        spec = RouterSpec(
            router_id=given["router_id"],
            model=_model(given),
            generation_config=given["generation_config"],
            host=given["host"],
            port=given["port"],
            worker_host=given["worker_host"],
            worker_port=given["worker_port"],
            http_port=http_port(given),
            timing=timing_spec(given),
            limits=limits_spec(given),
        )
    run_process(spec, given["ready_fd"])


@main.command()
@click.option("--worker-id", default="worker-0", show_default=True)
@click.option("--role", type=click.Choice([PREFILL, DECODE, "both"]), default="both")
@click.option("--router", "routers", multiple=True, metavar="HOST:PORT", help=_ROUTER_HELP)
@click.option("--port", type=_PORT, default=0)
@with_options(TRANSPORT_OPTIONS)
@with_options(MODEL_OPTIONS)
@with_options(LIMIT_OPTIONS)
@with_options(TIMING_OPTIONS)
@with_options(CHILD_OPTIONS)
def worker(**given: Any) -> None:
    """Run one worker, with one role or both."""
    if given["parent_pid"]:
        die_with_parent(given["parent_pid"])
    if given["spec"]:
        spec = from_json(WorkerSpec, given["spec"])
    else:
        transports = given["transports"] or TRANSPORTS
        if refusal := unsummed(transports, given["checksums"]):
            raise click.UsageError(refusal)
        spec = WorkerSpec(
            worker_id=given["worker_id"],
            epoch=new_epoch(),
            roles=(PREFILL, DECODE) if given["role"] == "both" else (given["role"],),
            model=_model(given),
            routers=given["routers"] or ("127.0.0.1:7201",),
            host=given["host"],
            port=given["port"],
            checksums=given["checksums"],
            sockets=given["sockets"],
            transports=transports,
            timing=timing_spec(given),
            limits=limits_spec(given),
        )
    run_process(spec, given["ready_fd"])


def _model(given: dict[str, Any]) -> ModelSpec:
    try:
        return model_spec(given)
    except StartError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main(prog_name="python -m deploy")
