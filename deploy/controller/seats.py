"""Which seat a new worker gets. Who runs is never moved.

A seat is an equal share of a host's CPUs, or as many of its GPUs as the worker has ranks. Of the
hosts with room the one is taken that lets most page transfers stay within a host, and among those
the fullest, so that others become empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from twolane.deploy.controller.desired import Seat
from twolane.deploy.spec.settings import DECODE, PREFILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a host has for workers: GPUs, as CUDA_VISIBLE_DEVICES names them there (one that ranks
    share is named as often), and seats for workers that compute on the CPU. `pools`: those that it
    takes workers of; empty: all. `ordered_set`: the hosts of that set leave in the opposite order
    of their numbers."""

    host: str = ""  # empty: this machine
    gpus: tuple[str, ...] = ()
    seats: int = 0
    pools: tuple[str, ...] = ()
    ordered_set: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """`n_configured`: its size where no operator has pinned it. `n_gpus`: of each worker; 0: it
    computes on the CPU."""

    name: str
    roles: tuple[str, ...]
    n_configured: int = 1
    n_gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A cluster's pools, and what it has room for. `closed`, below, are hosts that take no worker
    now: they are cordoned, or silent."""

    pools: tuple[Pool, ...]
    rooms: tuple[Room, ...]
    routers: tuple[tuple[str, str], ...] = ()  # each with its host
    most_gpus: int = 0  # that all workers may hold, on CPUs a seat each; 0: all there are
    model_dir: str = ""  # of the model, as it is configured

    def pool(self, name: str) -> Pool | None:
        return next((pool for pool in self.pools if pool.name == name), None)

    @property
    def hosts(self) -> list[str]:
        return [room.host for room in self.rooms]

    def free_seat(
        self, pool: Pool, taken: Sequence[Seat], closed: Collection[str] = ()
    ) -> Seat | None:
        """For one more worker of the pool, with the lowest number that is free in its name. None:
        no host that is open has room, or the budget is used up."""
        held = sum(max(1, len(seat.devices)) for seat in taken)
        if self.most_gpus and held + max(1, pool.n_gpus) > self.most_gpus:  # guard: budget
            return None
        found = [
            (self._paired(pool, room.host, taken), n_there, -i, seat)
            for i, room in enumerate(self.rooms)
            if room.host not in closed and (not room.pools or pool.name in room.pools)
            for n_there in [sum(its.host == room.host for its in taken)]
            if (seat := self._seat_in(room, pool, taken)) is not None
        ]
        return max(found, key=lambda each: each[:3])[3] if found else None

    def n_above(self, host: str, taken: Sequence[Seat]) -> int:
        """How many seats are taken on hosts that must leave before this one can."""
        its = self._room_of(host)
        if its is None or not its.ordered_set:
            return 0
        rooms = [self._room_of(seat.host) for seat in taken]
        return sum(
            room is not None and room.ordered_set == its.ordered_set and room.number > its.number
            for room in rooms
        )

    def _room_of(self, host: str) -> Room | None:
        return next((room for room in self.rooms if room.host == host), None)

    def budget(self, taken: Sequence[Seat]) -> str:
        """Like `5 of 8 GPUs`."""
        gpus = sum(len(room.gpus) for room in self.rooms)
        if any(pool.n_gpus for pool in self.pools):
            return f"{sum(len(seat.devices) for seat in taken)} of {gpus} GPUs"
        return f"{len(taken)} of {sum(room.seats for room in self.rooms)} seats"

    def _seat_in(self, room: Room, pool: Pool, taken: Sequence[Seat]) -> Seat | None:
        here = [seat for seat in taken if seat.host == room.host]
        devices: tuple[str, ...] = ()
        if pool.n_gpus:
            free = Counter(room.gpus) - Counter(gpu for seat in here for gpu in seat.devices)
            devices = tuple(free.elements())[: pool.n_gpus]
            if len(devices) < pool.n_gpus:
                return None
        elif sum(not seat.devices for seat in here) >= room.seats:
            return None
        return Seat(
            name=free_name(pool.name, (seat.name for seat in taken)),
            pool=pool.name,
            host=room.host,
            devices=devices,
        )

    def _paired(self, pool: Pool, host: str, taken: Sequence[Seat]) -> int:
        """The share of transfers that stay within a host, with one more worker of the pool there,
        in units that compare: as `twolane.deploy.spec.placement` has it."""
        by_name: Mapping[str, Pool] = {its.name: its for its in self.pools}
        counts: dict[tuple[str, str], int] = {}
        everybody = [
            (by_name[seat.pool].roles, seat.host) for seat in taken if seat.pool in by_name
        ]
        for roles, where in (*everybody, (pool.roles, host)):
            if len(roles) == 1:
                counts[roles[0], where] = counts.get((roles[0], where), 0) + 1
        n = {
            role: sum(m for (r, _), m in counts.items() if r == role) for role in (PREFILL, DECODE)
        }
        return sum(
            min(
                counts.get((PREFILL, where), 0) * n[DECODE],
                counts.get((DECODE, where), 0) * n[PREFILL],
            )
            for where in self.hosts
        )


def free_name(pool: str, taken: Iterable[str]) -> str:
    """Like decode-2: TLS files and metrics' ports are there for the lowest numbers."""
    names, i = {*taken}, 0
    while f"{pool}-{i}" in names:
        i += 1
    return f"{pool}-{i}"


def number_of(seat: Seat) -> int:
    """2 of decode-2."""
    return int(seat.name.rpartition("-")[2])
