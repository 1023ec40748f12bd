"""Makes a cluster what it is to be: starts, drains and ends workers, one step at a time.

    look ─▶ what is desired, one step on ─▶ saved ─▶ acts, as tasks ─▶ look …

What to do is decided in `twolane.deploy.controller.reconcile`. What is desired is saved before it
is acted on, so a controller that takes over goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from twolane.deploy.controller.desired import Desired, Seat
from twolane.deploy.controller.reconcile import (
    Act,
    Phase,
    Seen,
    Verb,
    View,
    next_acts,
    next_desired,
    role_wishes,
    target,
)
from twolane.deploy.controller.rollout import rolled
from twolane.deploy.controller.rollout_acts import goal_of, rollout_status
from twolane.deploy.controller.seats import Inventory, Pool
from twolane.deploy.errors import NotProvenError, RefusedError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.from_cluster import adopted
from twolane.deploy.launch.keeper import Keeper
from twolane.deploy.launch.launcher import Hosts, Launcher
from twolane.deploy.launch.router_clients import RouterClients
from twolane.deploy.spec.settings import DECODE, PREFILL
from twolane.deploy.spec.specs import WorkerSpec
from twolane.v1 import cluster_pb2, worker_pb2

log = logging.getLogger(__name__)

_HEARD = ("alive", "draining")  # words of WorkerStatus.state
_OPEN, _SILENT = ("up", "away"), "silent"  # and of HostStatus.state
_BUSY_POLL_S = 0.1
_ROLE_NAMES = {worker_pb2.ROLE_PREFILL: PREFILL, worker_pb2.ROLE_DECODE: DECODE}
_ROLE_NUMBERS = {name: number for number, name in _ROLE_NAMES.items()}
_LEAST_PAUSE_S = 0.02  # whatever changes
_ADOPT_S = 10.0  # until a controller that takes over has heard of all workers there


@dataclass(frozen=True, slots=True, kw_only=True)
class Actuators:
    """What is there to act with. `spec_of` makes the next incarnation at a seat."""

    keeper: Keeper
    launcher: Launcher
    hosts: Hosts | None
    client: RouterClients
    tasks: asyncio.TaskGroup
    spec_of: Callable[[Seat], WorkerSpec]
    grace_s: float


class Pools:
    """`save` returns when what is desired is where the next controller finds it, or raises
    `RefusedError`."""

    def __init__(
        self,
        inventory: Inventory,
        desired: Desired,
        save: Callable[[Desired], Awaitable[None]],
        tell: Callable[[Event], None],
    ) -> None:
        self.inventory = inventory
        self._desired = desired
        self._save = save
        self._tell = tell
        self._changing = asyncio.Lock()
        self._actuators: Actuators | None = None
        self._kept: dict[str, asyncio.Task[None]] = {}  # workers, each by a task of its own
        self._doing: dict[str, asyncio.Task[None]] = {}  # one act at a time, by worker
        self._failed: dict[str, str] = {}  # why the last one was not done
        self._members: Mapping[int, cluster_pb2.WorkerStatus] = {}  # by epoch
        self._everywhere: Collection[int] | None = None  # epochs; None: all of them
        self._rolls_from_s = 0.0
        self._host_states: Mapping[str, str] = {}
        self._pin_ends: dict[str, float] = {}
        self._woken = asyncio.Event()

    @property
    def desired(self) -> Desired:
        return self._desired

    def is_wanted(self, name: str) -> bool:
        """Whether that worker is to be started again when it dies. One on a cordoned host is not:
        its like starts elsewhere."""
        seat = self._desired.seat(name)
        is_open = seat is not None and seat.host not in self._desired.cordoned
        return is_open and self._desired.is_wanted(name)

    def keep_all(self, actuators: Actuators) -> None:
        """Call it when the cluster is up: from now on every worker that is wanted is kept."""
        self._actuators = actuators
        now = asyncio.get_running_loop().time()
        self._rolls_from_s = now + _ADOPT_S * (self._desired.rolling is not None)
        self._pin_ends = {pin.pool: now + pin.left_s for pin in self._desired.pins if pin.left_s}
        for seat in self._desired.seats:
            if self._desired.is_wanted(seat.name):
                self._keep(seat)

    async def pause(self, poll_s: float) -> None:
        """Between two looks: shorter while something is to be done, over when something changes."""
        await asyncio.sleep(_LEAST_PAUSE_S)
        desired = self._desired
        is_idle = not (desired.removals or desired.undrain or self._doing or self.wishes())
        with suppress(TimeoutError):
            async with asyncio.timeout(poll_s if is_idle else min(poll_s, _BUSY_POLL_S)):
                await self._woken.wait()
        self._woken.clear()

    async def look(
        self,
        members: list[cluster_pb2.WorkerStatus],
        hosts: list[cluster_pb2.HostStatus],
        everywhere: Collection[int] | None = None,
    ) -> None:
        """Go one step on, with what routers and agents know now: `everywhere` are the epochs that
        every router gives work, None: all of them. Raises `DeposedError`."""
        assert self._actuators is not None
        self._everywhere = everywhere
        self._members = {member.worker.epoch: member for member in members}
        self._host_states = {host.name: host.state for host in hosts}
        found = () if self._actuators.hosts is None else self._actuators.hosts.found()
        async with self._changing:
            try:
                await self._become(adopted(self._desired, self.inventory, found))
                new = next_desired(self._unpinned(), self.inventory, view := self.view())
                if asyncio.get_running_loop().time() >= self._rolls_from_s:
                    new = rolled(new, self.inventory, view)
                await self._forget_drains(new)
                await self._become(new)
            except RefusedError as error:  # nothing is done that the next controller cannot know
                log.warning("%s", error)
                return
        if self._actuators.hosts is not None:
            self._actuators.hosts.want({seat.host for seat in self._desired.seats})
        for act in next_acts(self._desired, self.view()):
            if act.name not in self._doing:
                self._doing[act.name] = self._actuators.tasks.create_task(self._do(act))

    async def change(self, decide: Callable[[Desired, View], Desired]) -> Desired:
        """What is desired from now on, saved on return. If `decide` raises, nothing changes."""
        async with self._changing:
            new = decide(self._desired, self.view())
            self._failed.clear()
            now = asyncio.get_running_loop().time()
            for pin in new.pins:
                if pin != self._desired.pin(pin.pool):
                    self._pin_ends.pop(pin.pool, None)
                    if pin.left_s:
                        self._pin_ends[pin.pool] = now + pin.left_s
            await self._become(new)
        self._woken.set()
        return self._desired

    async def decide(self, decide: Callable[[Desired, View], Desired]) -> None:
        """As `change`, for the law: nothing that has failed is tried again for it. Where it cannot
        be saved, nothing changes."""
        async with self._changing:
            before = self._desired
            try:
                await self._become(decide(before, self.view()))
            except RefusedError as error:
                log.warning("%s", error)
                return
        if self._desired is not before:
            self._woken.set()

    def wake(self) -> None:
        """Look again at once."""
        self._woken.set()

    def view(self) -> View:
        """What is known of all workers that have a seat."""
        return View(
            workers={seat.name: self._seen(seat) for seat in self._desired.seats},
            closed=frozenset(
                name for name, state in self._host_states.items() if state not in _OPEN
            ),
            silent=frozenset(n for n, state in self._host_states.items() if state == _SILENT),
        )

    def status(self) -> list[cluster_pb2.PoolStatus]:
        """For routers, which show it."""
        return [self._status(pool) for pool in self.inventory.pools]

    def rollout(self) -> cluster_pb2.RolloutStatus | None:
        """For routers, which show it and keep its canary's share."""
        return rollout_status(self._desired, self.inventory, self.view())

    def config(
        self, controllers: Iterable[cluster_pb2.ConfigField] = ()
    ) -> cluster_pb2.ConfigState:
        """For routers, which take it if theirs is older. `controllers`: its own settings."""
        its = self._desired
        return cluster_pb2.ConfigState(
            revision=its.config_revision, values=dict(its.config), controllers=controllers
        )

    def wishes(self) -> list[cluster_pb2.RoleWish]:
        """For routers, which pass them on."""
        return [
            cluster_pb2.RoleWish(epoch=epoch, roles=sorted(_ROLE_NUMBERS[name] for name in roles))
            for epoch, roles in role_wishes(self._desired, self.inventory, self.view()).items()
        ]

    def show_in(self, host: cluster_pb2.HostStatus) -> None:
        """What is desired of that host: whether it is cordoned, and who has a seat there."""
        seats = [seat for seat in self._desired.seats if seat.host == host.name]
        host.cordoned = host.name in self._desired.cordoned
        host.workers[:] = sorted(seat.name for seat in seats)
        host.gpus = sum(len(seat.devices) for seat in seats)

    async def until_ended(self, name: str) -> str:
        """Wait for the end of a worker that is to go. Returns how it has ended, with the class of
        the proof. Raises `NotProvenError` if its end was tried, and is not proven."""
        assert self._actuators is not None
        while self._desired.removal(name) is not None:
            if name in self._failed and name not in self._doing:
                raise NotProvenError(self._failed[name])
            await asyncio.sleep(_BUSY_POLL_S / 2)
        how = self._actuators.keeper.ends.get(name, (0, "is gone"))[1]
        return how + " (proof of class A)" * (self._actuators.hosts is None)

    async def _forget_drains(self, new: Desired) -> None:
        """Whose seat is free now, or has the next one: that one is not drained."""
        assert self._actuators is not None
        for seat in self._desired.seats:
            name = seat.name
            is_free = new.seat(name) is None
            is_renewed = self._desired.removal(name) is not None and new.removal(name) is None
            if is_free and self._actuators.hosts is not None:
                self._actuators.hosts.vacate(name)
            if is_free or (is_renewed and name not in new.undrain):
                epoch, _ = self._actuators.keeper.ends.get(name, (0, ""))
                await self._actuators.client.drain(
                    cluster_pb2.DrainWorkerRequest(worker_id=name, expect_epoch=epoch, forget=True)
                )

    def _unpinned(self) -> Desired:
        """Without pins that are over. Sizes stay while a rollout is under way."""
        desired, now = self._desired, asyncio.get_running_loop().time()
        if desired.rolling is not None:
            return desired
        for pool, end in list(self._pin_ends.items()):
            if now >= end:
                del self._pin_ends[pool]
                desired = desired.pinned(pool, None)
                text = f"{pool} is not pinned any more"
                self._tell(Event(kind=Kind.SCALED, name=pool, text=text))
        return desired

    async def _become(self, new: Desired) -> None:
        if new == self._desired and new.done == self._desired.done and new.revision:
            return
        now = asyncio.get_running_loop().time()
        pins = tuple(
            replace(pin, left_s=max(1.0, self._pin_ends[pin.pool] - now) if pin.left_s else 0.0)
            for pin in new.pins
        )
        new = replace(new, pins=pins, revision=self._desired.revision + 1)
        await self._save(new)
        before, self._desired = self._desired, new
        for removal in new.removals:
            if before.removal(removal.name) != removal:
                how = removal.words(goal_of(new, self.inventory))
                self._tell(Event(kind=Kind.SCALED, name=removal.name, text=how))

    def _seen(self, seat: Seat) -> Seen:
        if self._actuators is None:
            return Seen()
        handle = self._actuators.keeper.running.get(seat.name)
        if handle is None:
            if seat.name in self._kept:
                failed = self._actuators.keeper.failed.get(seat.name, "")
                return Seen(phase=Phase.STARTING, failed=failed)
            is_left = (hosts := self._actuators.hosts) is not None and seat.name in hosts.running()
            return Seen(phase=Phase.LEFT if is_left else Phase.ABSENT)
        member = self._members.get(handle.epoch)
        if member is None or member.state not in _HEARD:
            return Seen(phase=Phase.RUNNING, epoch=handle.epoch)
        drain = member.load.drain
        return Seen(
            phase=Phase.RUNNING,
            epoch=handle.epoch,
            rows=member.requests,
            is_heard=True,
            draining=member.load.HasField("drain"),
            hands_over=drain.hands_over,
            ticket=drain.number if drain.has_ticket else 0,
            is_taken=drain.is_taken,
            roles=frozenset(_ROLE_NAMES[role] for role in member.roles),
            able=frozenset(_ROLE_NAMES[role] for role in member.load.able),
            everywhere=self._everywhere is None or handle.epoch in self._everywhere,
            fingerprint=member.fingerprint,
        )

    def _status(self, pool: Pool) -> cluster_pb2.PoolStatus:
        desired, pin, view = self._desired, self._desired.pin(pool.name), self.view()
        staying = [its.name for its in desired.staying(pool.name) if desired.is_wanted(its.name)]
        phases = [view.of(name) for name in staying]
        leaving = [seat for seat in desired.seats if seat.pool == pool.name]
        end, now = self._pin_ends.get(pool.name), asyncio.get_running_loop().time()
        return cluster_pb2.PoolStatus(
            pool=pool.name,
            workers=target(desired, pool),
            names=[seat.name for seat in leaving],
            alive=sum(seen.is_heard for seen in phases),
            starting=sum(not seen.is_heard for seen in phases),
            draining=len(leaving) - len(phases),
            gpus_a_worker=pool.n_gpus,
            pinned=pin is not None,
            pinned_for_s=0.0 if end is None else max(0.0, end - now),
        )

    def _keep(self, seat: Seat) -> None:
        actuators = self._actuators
        assert actuators is not None
        handle = actuators.keeper.running.get(seat.name)
        spec = actuators.spec_of(seat) if handle is None else actuators.keeper.specs[seat.name]
        task = actuators.tasks.create_task(actuators.keeper.keep(spec), name=f"keep-{seat.name}")
        self._kept[seat.name] = task

        def on_end(_: asyncio.Task[None]) -> None:
            del self._kept[seat.name]
            self._woken.set()

        task.add_done_callback(on_end)

    async def _do(self, act: Act) -> None:
        """Failing is told, and it is tried again with the next look."""
        why = ""
        try:
            why = await self._done(act)
        except NotProvenError as error:
            why = str(error)
        finally:
            del self._doing[act.name]
            self._woken.set()
        if why and self._failed.get(act.name) != why:
            text = f"cannot {act.verb.value} it: {why}"
            self._tell(Event(kind=Kind.LOST, name=act.name, epoch=act.epoch, text=text))
        self._failed.pop(act.name, None)
        if why:
            self._failed[act.name] = why

    async def _done(self, act: Act) -> str:
        """Returns why it was not done. Raises `NotProvenError`, `DeposedError`."""
        actuators, name = self._actuators, act.name
        assert actuators is not None
        handle = actuators.keeper.running.get(name)
        match act.verb:
            case Verb.START:
                if (seat := self._desired.seat(name)) is not None and name not in self._kept:
                    self._keep(seat)
            case Verb.CALL_OFF:
                await self._call_off(name)
            case Verb.DRAIN | Verb.UNDRAIN | Verb.TAKE_TICKET:
                return await actuators.client.drain(
                    cluster_pb2.DrainWorkerRequest(
                        worker_id=name,
                        expect_epoch=act.epoch,
                        undo=act.verb is Verb.UNDRAIN,
                        hand_over=act.hand_over,
                        take_ticket=act.ticket,
                    )
                )
            case Verb.STOP if handle is not None and handle.epoch == act.epoch:
                await actuators.launcher.stop(handle, actuators.grace_s)
            case Verb.KILL if handle is not None and handle.epoch == act.epoch:
                await actuators.launcher.fence(handle)
        return ""

    async def _call_off(self, name: str) -> None:
        """End a start, or the waiting for the next one."""
        actuators, task = self._actuators, self._kept.get(name)
        assert actuators is not None
        handle = actuators.keeper.running.get(name)
        if task is None or handle is not None:
            return  # it runs meanwhile
        task.cancel()
        await asyncio.wait([task])
        if name in actuators.keeper.running:  # just then it was there
            await actuators.launcher.fence(actuators.keeper.running[name])
            actuators.keeper.forget(name, "was called off")
