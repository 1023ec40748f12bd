"""The clients' doors of a cluster: one for each router that the endpoint names or that a router has
announced."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
from collections.abc import Sequence
from dataclasses import replace

import grpc

from twolane.calls.multiplexed import Multiplexer
from twolane.errors import CancelledError
from twolane.rpc.listen import host_of
from twolane.security.target import Stamp, Target
from twolane.v1 import inference_pb2_grpc

log = logging.getLogger(__name__)

CLOSED = "the client was closed"
_CALLS_END_S = 3600.0  # how long calls may continue on a channel that takes no more
_AVOIDED_S = 1.0  # how long a lost router is avoided


class Door:
    """The door of one router. Its channel is created at first use, on the event loop that runs
    then, and again when the client's certificate has been renewed."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.avoided_until = 0.0
        self._opened: grpc.aio.Channel | None = None
        self._stamp: Stamp = ()  # of the files that the channel uses
        # Old channels, each with the task that closes it when its calls have ended.
        self._retired: dict[grpc.aio.Channel, asyncio.Task[None]] = {}
        self._multiplexers: dict[grpc.aio.Channel, Multiplexer] = {}

    @property
    def channel(self) -> grpc.aio.Channel:
        stamp = self.target.stamp()
        channel = self._opened
        if channel is None or (stamp and stamp != self._stamp):
            self.retire()
            channel = self._opened = self.target.channel()
            self._stamp = stamp
        return channel

    @property
    def inference(self) -> inference_pb2_grpc.InferenceServiceStub:
        return inference_pb2_grpc.InferenceServiceStub(self.channel)

    @property
    def multiplexer(self) -> Multiplexer:
        """The multiplexer of the current channel."""
        channel, metadata = self.channel, self.target.metadata
        if channel not in self._multiplexers:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            self._multiplexers[channel] = Multiplexer(
                lambda: stub.Multiplex(metadata=metadata),
                lambda request, left_s, trace: stub.Generate(
                    request, timeout=left_s, metadata=(*(metadata or ()), *trace)
                ),
            )
        return self._multiplexers[channel]

    def avoid(self) -> None:
        """Prefer other doors for a moment, because this router was lost."""
        self.avoided_until = asyncio.get_running_loop().time() + _AVOIDED_S

    async def has_others(self) -> bool:
        """Whether the host name has several addresses, of which the channel finds another one by
        itself."""
        host = host_of(self.target.endpoint)
        try:
            ipaddress.ip_address(host)
        except ValueError:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(host, None)
            except OSError:
                return False
            return len({address[4][0] for address in found if not _is_loopback(address)}) > 1
        return False

    async def close(self) -> None:
        for multiplexer in self._multiplexers.values():
            await multiplexer.close()
        for task in self._retired.values():  # first: to close a channel twice at once is an error
            task.cancel()
        await asyncio.gather(*self._retired.values(), return_exceptions=True)
        for channel in (*self._retired, self._opened):
            if channel is not None:
                await channel.close()

    def retire(self) -> None:
        """Let the channel's calls end, then close it. A later use of the door opens another."""
        channel, self._opened = self._opened, None
        if channel is None:
            return
        if channel in self._multiplexers:
            self._multiplexers[channel].retire()
        closing = asyncio.create_task(channel.close(_CALLS_END_S), name="retired-channel")
        self._retired = {its: task for its, task in self._retired.items() if not task.done()}
        self._retired[channel] = closing

    @property
    def is_idle(self) -> bool:
        """Whether no channel is open."""
        return self._opened is None and all(task.done() for task in self._retired.values())


class Doors:
    """The doors of a cluster that the client knows: those that its user has named, always, and
    those that routers have announced, until one is lost that the latest announcement omits."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.all = [Door(target) for target in targets]
        self._at = random.randrange(len(self.all))  # distributes clients over the routers
        self._n_named = len(self.all)
        self._announced: set[str] = set()  # endpoints, by routers
        self._latest: Sequence[str] = ()  # those that a router has announced last, one for each
        self._dropped: list[Door] = []  # until their calls have ended
        self._told_until = 0.0  # when the search that was last logged ends
        self._is_closed = False

    def next(self) -> Door:
        """The next door in turn. Doors just lost are skipped; if all were, the one lost first is
        returned. Raises `CancelledError` once the client is closed: its search ends."""
        if self._is_closed:
            raise CancelledError(CLOSED)
        now = asyncio.get_running_loop().time()
        in_turn = [(self._at + nth) % len(self.all) for nth in range(1, len(self.all) + 1)]
        self._at = min(in_turn, key=lambda at: max(now, self.all[at].avoided_until))
        return self.all[self._at]

    def learn(self, endpoints: Sequence[str]) -> None:
        """Add these endpoints, which a router has announced: one for each router. Routers may share
        a port."""
        self._latest = [*endpoints] or self._latest
        self._announced |= {*endpoints}
        known = {door.target.endpoint for door in self.all}
        like = self.all[0].target
        fresh = [endpoint for endpoint in endpoints if endpoint not in known]
        self.all += [Door(replace(like, endpoint=endpoint)) for endpoint in fresh]

    def note_lost(self, door: Door) -> None:
        """Avoid a door whose router did not answer. Drop it if the latest announcement omits it,
        and the user has not named it; its running calls go on."""
        door.avoid()
        endpoint = door.target.endpoint
        if door not in self.all[self._n_named :] or endpoint in self._latest:
            return
        self.all.remove(door)
        self._announced.discard(endpoint)
        for each in (*self._dropped, door):
            each.retire()
        self._dropped = [each for each in (*self._dropped, door) if not each.is_idle]

    @property
    def are_unknown(self) -> bool:
        """Whether there is one door, and it is not known yet how many routers share it."""
        return len(self.all) == 1 and not self._latest

    async def may_go_on(self) -> bool:
        """Whether there may be another router to continue at. The only one may announce itself by
        another name than it was found by."""
        is_one = self._n_named == 1 and max(len(self._latest), len(self._announced)) <= 1
        return not is_one or await self.all[0].has_others()

    def tell_lost(self, until: float) -> None:
        """Log that no router answers: once for all answers that look for one."""
        now = asyncio.get_running_loop().time()
        if now >= self._told_until:
            self._told_until = until
            named = ",".join(door.target.endpoint for door in self.all[: self._n_named])
            log.warning("no router of %s answers; trying again for %.0f s", named, until - now)

    def tell_found(self) -> None:
        """Log that one does, if the opposite was logged."""
        if self._told_until:
            self._told_until = 0.0
            log.info("a router answers again")

    async def close(self) -> None:
        self._is_closed = True
        for door in (*self.all, *self._dropped):
            await door.close()


def _is_loopback(found: tuple[object, ...]) -> bool:
    address: tuple[str, ...] = found[4]  # type: ignore[assignment]
    return ipaddress.ip_address(address[0].partition("%")[0]).is_loopback
