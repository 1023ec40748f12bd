"""Clusters as the controller sees them."""

from __future__ import annotations

from collections.abc import Mapping

from twolane.deploy.controller.desired import Desired, Seat
from twolane.deploy.controller.reconcile import Phase, Seen, View
from twolane.deploy.controller.seats import Inventory, Pool, Room


def inventory(*, prefill: int = 1, decode: int = 1, gpus: int = 0, **rooms: int) -> Inventory:
    """`rooms`: seats of each host, or GPUs if workers have `gpus` each."""
    return Inventory(
        pools=(
            Pool(name="prefill", roles=("prefill",), n_configured=prefill, n_gpus=gpus),
            Pool(name="decode", roles=("decode",), n_configured=decode, n_gpus=gpus),
        ),
        rooms=tuple(
            Room(host=host, gpus=tuple(map(str, range(n))) if gpus else (), seats=0 if gpus else n)
            for host, n in (rooms or {"": 4}).items()
        ),
    )


def seated(*where: str) -> Desired:
    """Like decode-0@b: by name and host; on hosts with GPUs decode-0@b:0,1."""
    seats = []
    for text in where:
        name, _, place = text.partition("@")
        host, _, devices = place.partition(":")
        pool = name.rpartition("-")[0]
        gpus = tuple(devices.split(",")) if devices else ()
        seats.append(Seat(name=name, pool=pool, host=host, devices=gpus))
    return Desired(seats=tuple(seats))


def names(desired: Desired) -> list[str]:
    """Like `seated` takes them."""
    return [
        f"{s.name}@{s.host}" + (":" + ",".join(s.devices)) * bool(s.devices) for s in desired.seats
    ]


def running(desired: Desired, rows: Mapping[str, int] | None = None) -> View:
    """Everybody runs and is heard."""
    rows = rows or {}
    return View(
        workers={
            seat.name: Seen(
                phase=Phase.RUNNING, epoch=i + 1, is_heard=True, rows=rows.get(seat.name, 0)
            )
            for i, seat in enumerate(desired.seats)
        }
    )
