"""`twolane scale`: sets the number of workers of each pool."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import click

from twolane.admin import AdminClient
from twolane.cli.common import json_option, operator, operator_option
from twolane.cli.controller import NotProvenError
from twolane.cli.ops.acting import act_options, new_act
from twolane.cli.ops.changing import change
from twolane.cli.patience import Patient
from twolane.cli.times import Duration, Seconds
from twolane.cli.waiting import News
from twolane.errors import InvalidParameterError
from twolane.params import MAX_INT
from twolane.v1 import acts_pb2, cluster_pb2

_POLL_S = 0.2


@click.command()
@click.argument("sizes", metavar="POOL=N...", nargs=-1, required=True)
@click.option(
    "--for",
    "for_s",
    type=Duration(least_s=1.0),
    metavar="1h",
    help="Remove the pin after this time.",
)
@click.option(
    "--expect-revision",
    type=click.IntRange(0, MAX_INT),
    default=0,
    metavar="N",
    help="Refuse if sizes changed since.",
)
@click.option("--wait", is_flag=True, help="Return when the pools have these sizes.")
@click.option(
    "--timeout-s",
    type=Seconds(),
    default=600.0,
    show_default=True,
    help="With --wait: exit with 5.",
)
@act_options
@json_option
@operator_option
def scale(
    sizes: Sequence[str],
    *,
    for_s: float | None,
    expect_revision: int,
    wait: bool,
    timeout_s: float,
    reason: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Pin pools at N workers each: all of them, or none if they do not fit.

    POOL=auto removes a pin. Surplus workers drain, and are stopped when they have their tickets.
    """
    request = acts_pb2.ScalePoolsRequest(
        act=new_act(reason, dry_run=dry_run),
        pools=[_size(text) for text in _pairs(sizes)],
        for_s=for_s or 0.0,  # 0: until it is removed
        expect_revision=expect_revision,
    )
    with operator(endpoint) as admin:
        change(admin, "ScalePools", request, yes=yes, as_json=as_json, nothing="no change")
        if wait and not dry_run:
            with Patient(admin, partial(operator, endpoint)) as patient:
                _wait(patient, request.pools, timeout_s)


def _pairs(sizes: Sequence[str]) -> Sequence[str]:
    """`decode auto` may be said for `decode=auto`."""
    is_bare = len(sizes) == 2 and not any("=" in text for text in sizes)
    return ["=".join(sizes)] if is_bare else sizes


def _size(text: str) -> acts_pb2.PoolSize:
    pool, is_given, n = text.partition("=")
    if not (pool and is_given and (n == "auto" or n.isdecimal())):
        raise InvalidParameterError("POOL=N", text, "like decode=3 or decode=auto")
    if n == "auto":
        return acts_pb2.PoolSize(pool=pool, auto=True)
    if int(n) > MAX_INT:
        raise InvalidParameterError("POOL=N", text, f"at most {MAX_INT} workers")
    return acts_pb2.PoolSize(pool=pool, workers=int(n))


def _wait(
    patient: Patient[AdminClient], sizes: Sequence[acts_pb2.PoolSize], timeout_s: float
) -> None:
    """Says what is left. Raises `NotProvenError` if it takes longer, or if
    another size is wanted by now."""
    end, news, wanted = time.monotonic() + timeout_s, News(), set[str]()
    while text := _left(pools := patient.look(_pools), sizes):
        its_sizes = [(its, size) for its in pools for size in sizes if its.pool == size.pool]
        same = {its.pool for its, size in its_sizes if _is_wanted(its, size)}
        if changed := wanted & {its.pool for its, _ in its_sizes} - same:
            raise NotProvenError(f"the size of {', '.join(sorted(changed))} was changed: {text}")
        wanted |= same
        news.tell(f"waiting: {text}")
        if time.monotonic() > end:
            why = "`twolane events` says what has happened"
            raise NotProvenError(f"not so after {timeout_s:g} s: {text}; {why}")
        time.sleep(_POLL_S)


def _pools(admin: AdminClient) -> Sequence[cluster_pb2.PoolStatus]:
    asked = cluster_pb2.GetClusterStatusRequest(without_requests=True)
    found: cluster_pb2.GetClusterStatusResponse = admin.call("GetClusterStatus", asked)
    return found.pools


def _is_wanted(its: cluster_pb2.PoolStatus, size: acts_pb2.PoolSize) -> bool:
    """Whether the controller has taken over this size."""
    return size.auto or its.workers == size.workers


def _left(pools: Sequence[cluster_pb2.PoolStatus], sizes: Sequence[acts_pb2.PoolSize]) -> str:
    """decode: 2 of 3 alive, 1 starting, 1 draining; empty: all are as they are to be."""
    found = {its.pool: its for its in pools}
    left = []
    for size in sizes:
        its = found.get(size.pool)
        if its is None:
            left.append(f"{size.pool}: no controller has told this router of it")
        elif not _is_wanted(its, size):
            left.append(f"{size.pool}: is to have {its.workers}, not {size.workers}")
        elif its.alive != its.workers or its.starting or its.draining:
            counts = ((its.starting, "starting"), (its.draining, "draining"))
            words = [f"{its.alive} of {its.workers} alive", *(f"{n} {w}" for n, w in counts if n)]
            left.append(f"{size.pool}: {', '.join(words)}")
    return "; ".join(left)
