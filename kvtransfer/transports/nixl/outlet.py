"""Sender's end of the nixl transport: its agent writes pages into memory that the receiver's has
registered.

    jobs    [job] [job] ...
    agent     part part part part    a few under way; polled while there are any
    channel   hello ->  <- welcome   who we are; where the pages are, and which grants are valid
              busy ->   <- revoke  drained ->

A post is complete when its last part is in the receiver's memory. If a cancelled part does not end
soon (the receiver has stopped), the connection is closed, and with it the agent, which then reads
nothing any more. The next post opens a new connection.
"""

from __future__ import annotations

import errno
import itertools
import select
import socket
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.device import DeviceError, Fence
from twolane.kvtransfer.transport import Checksums, Posted
from twolane.kvtransfer.transports.common.addresses import socket_to
from twolane.kvtransfer.transports.common.frames import FrameError
from twolane.kvtransfer.transports.common.outlet_thread import NO_SUMS
from twolane.kvtransfer.transports.common.thread import TransportThread
from twolane.kvtransfer.transports.nixl.agent import NixlAgent, NixlError, NixlWrite, WriteState
from twolane.kvtransfer.transports.nixl.channel import NixlChannel, regions_of
from twolane.kvtransfer.transports.nixl.source import NixlSource, Part
from twolane.v1 import nixl_pb2

PARTS_AHEAD = 4
GIVE_UP_S = 1.0  # a cancelled write that takes longer closes the connection
WELCOME_S = 5.0  # without an answer by then the posts fail
_VOID_KEPT = 4096  # how many revoked generations are remembered, for late posts


@dataclass(slots=True, eq=False)
class _Job:
    """One post. It is complete when all its parts were launched, or dropped, and have ended."""

    post: int
    generation: int
    plan: CopyPlan
    begin: Fence | None = None  # its pages are computed when it is done
    launched: int = 0  # pages
    n_under_way: int = 0  # parts
    ok: bool = True
    sums: list[Checksums] = field(default_factory=list)

    @property
    def is_launched(self) -> bool:
        return self.launched == self.plan.n_pages or not self.ok

    @property
    def is_called_back(self) -> bool:
        """It was cancelled or failed, and parts of it still have to end."""
        return not self.ok and self.n_under_way > 0


class NixlOutlet(TransportThread[Posted]):
    """See `Outlet`. Owns the source. Connects when there is something to send."""

    def __init__(
        self,
        address: str,
        sender_epoch: int,
        receiver_epoch: int,
        source: NixlSource,
        *,
        digest: str,
    ) -> None:
        super().__init__("outlet")
        self._address = address
        self._hello = nixl_pb2.NixlHello(
            sender_epoch=sender_epoch,
            receiver_epoch=receiver_epoch,
            page_bytes=source.page_bytes,
            checksum=digest,
        )
        self._source = source
        self._names = itertools.count(1)
        self._channel: NixlChannel[nixl_pb2.NixlResponse] | None = None
        self._agent: NixlAgent | None = None  # None also while there is no channel
        self._is_busy = False  # what the receiver was sent last
        self._last_generation = 0  # the receiver's last grant when it welcomed us ...
        self._held: frozenset[int] = frozenset()  # ... and those not revoked then
        self._void: deque[int] = deque(maxlen=_VOID_KEPT)  # revoked since
        self._owed: set[int] = set()  # generations that wait for Drained
        self._give_up_at: float | None = None
        self._jobs: deque[_Job] = deque()  # not all launched
        self._parts: deque[tuple[_Job, Part, NixlWrite]] = deque()
        self._start()

    def post(self, post: int, generation: int, plan: CopyPlan) -> None:
        if self._is_running:
            self._order(self._jobs.append, _Job(post, generation, plan))
        else:
            self._mailbox.tell(Posted(post, False, NO_SUMS))

    def cancel(self, generation: int) -> None:
        self._order(self._cancel, generation)

    # -- on the thread ----------------------------------------------------------------------

    def _turn(self) -> None:
        try:
            if self._agent is None:
                if self._jobs:
                    self._connect()
                else:
                    self._wait()
                return
            self._launch_some()
            if self._parts:
                if not self._look():
                    self._nap()
                    self._listen()
            else:
                self._rest()
        except (OSError, FrameError):
            self._break()

    def _launch_some(self) -> None:
        while self._jobs and len(self._parts) < PARTS_AHEAD:
            job = self._jobs[0]
            if not job.is_launched and not self._launch(job):
                return
            if job.is_launched:
                self._jobs.popleft()
                self._end_if_over(job)

    def _launch(self, job: _Job) -> bool:
        """Submit the next part. False if no slot is free."""
        assert self._agent is not None
        dst = job.plan.dst
        fits = int(dst.min()) >= 0 and int(dst.max()) < self._agent.n_peer_pages
        if self._is_void(job.generation) or not fits:  # guard: generation
            job.ok = False
            return True
        span = slice(job.launched, min(job.plan.n_pages, job.launched + self._source.part_pages))
        try:
            part = self._source.take(job.plan.src[span]) if self._is_computed(job) else None
        except DeviceError:  # only this job fails: the connection works
            job.ok = False
            return True
        if part is None:
            return False
        if not self._is_busy:
            self._say_busy(True)
        try:
            write = self._agent.write(part.ids, dst[span])
        except NixlError:
            job.ok = False
            self._source.release(part)
            raise
        job.sums.append(part.sums)
        job.launched = span.stop
        job.n_under_way += 1
        self._parts.append((job, part, write))
        return True

    def _is_computed(self, job: _Job) -> bool:
        """Whether its pages are computed. Raises `DeviceError`."""
        if job.plan.after is None:
            return True
        if job.begin is None:
            job.begin = self._source.after(job.plan.after)
        return job.begin.is_done()  # guard: mark

    def _look(self) -> bool:
        """Whether the oldest part has ended. Raises OSError if it failed or takes too long."""
        assert self._agent is not None
        job, part, write = self._parts[0]
        state = write.state()
        if state is WriteState.FAILED:
            raise ConnectionResetError("a write failed")
        if state is WriteState.UNDER_WAY or (part.fence is not None and not part.fence.is_done()):
            if self._give_up_at is not None and time.monotonic() > self._give_up_at:
                raise TimeoutError("a write that was called back does not end")
            return False
        self._parts.popleft()
        self._agent.release(write)
        self._source.release(part)
        self.n_moved += 1
        job.n_under_way -= 1
        self._end_if_over(job)
        if not any(job.is_called_back for job, _, _ in self._parts):
            self._give_up_at = None
        self._tell_drained()
        return True

    def _rest(self) -> None:
        """Nothing is under way: wait for orders, or for pages to be computed."""
        assert self._channel is not None
        if self._is_busy:
            self._say_busy(False)
        if self._jobs:
            self._nap()  # their pages are still being computed
        else:
            self._wait_for(self._channel.stream, select.POLLIN)
        self._listen()

    def _end_if_over(self, job: _Job) -> None:
        if job.n_under_way:  # guard: parts under way
            return
        if job.is_launched and job not in self._jobs:
            sums = np.concatenate(job.sums) if job.ok and job.sums else NO_SUMS
            self._mailbox.tell(Posted(job.post, job.ok, sums))

    def _cancel(self, generation: int) -> None:
        for job in [job for job in self._jobs if job.generation == generation]:
            self._jobs.remove(job)
            job.ok = False
            self._end_if_over(job)
        for job, _, _ in self._parts:
            if job.generation == generation:
                job.ok = False  # reported when its last part has ended
                if self._give_up_at is None:
                    self._give_up_at = time.monotonic() + GIVE_UP_S

    # -- the receiver -----------------------------------------------------------------------

    def _is_void(self, generation: int) -> bool:
        """Whether the grant was revoked, also while there was no channel to hear of it."""
        is_old = generation <= self._last_generation and generation not in self._held
        return is_old or generation in self._void

    def _listen(self) -> None:
        assert self._channel is not None
        for message in self._channel.heard():
            self._on_message(message)
        self._tell_drained()

    def _on_message(self, message: nixl_pb2.NixlResponse) -> None:
        if not message.HasField("revoke"):
            raise FrameError("a second welcome, or nothing")
        generation = message.revoke.generation
        self._void.append(generation)
        self._owed.add(generation)
        self._cancel(generation)

    def _tell_drained(self) -> None:
        assert self._channel is not None
        under_way = {job.generation for job, _, _ in self._parts}
        for generation in self._owed - under_way:  # guard: drain wait
            self._owed.remove(generation)
            drained = nixl_pb2.NixlDrained(generation=generation)
            self._channel.say(nixl_pb2.NixlRequest(drained=drained))

    def _say_busy(self, is_busy: bool) -> None:
        assert self._channel is not None
        self._channel.say(nixl_pb2.NixlRequest(busy=nixl_pb2.NixlBusy(is_busy=is_busy)))
        self._is_busy = is_busy

    def _connect(self) -> None:
        """Connect; if that fails, all jobs fail."""
        try:
            welcome, *others = self._meet()
            if not welcome.HasField("welcome"):
                raise FrameError("no welcome")
            self._source.enter()
            self._agent = agent = NixlAgent(self._name(), self._source.regions)
            self._use(agent, welcome.welcome)
            for message in others:
                self._on_message(message)
        except (OSError, FrameError):
            self._break()
            self._fail(list(self._jobs))

    def _use(self, agent: NixlAgent, welcome: nixl_pb2.NixlWelcome) -> None:
        agent.meet(welcome.agent, regions_of(welcome), self._hello.page_bytes)
        self._last_generation = welcome.last_generation
        self._held = frozenset(welcome.open_generations)

    def _meet(self) -> list[nixl_pb2.NixlResponse]:
        """Open the channel. Returns the receiver's first messages, at least one."""
        until = time.monotonic() + WELCOME_S
        stream, target = socket_to("tcp", self._address)
        self._channel = channel = NixlChannel(stream, nixl_pb2.NixlResponse)
        error = stream.connect_ex(target)  # type: ignore[arg-type]  # by its family
        if error == errno.EINPROGRESS:
            self._await(stream, select.POLLOUT, until)
            error = stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, f"no connection to {self._address}")
        channel.say(nixl_pb2.NixlRequest(hello=self._hello))
        while not (messages := channel.heard()):
            self._await(stream, select.POLLIN, until)
        return messages

    def _await(self, stream: socket.socket, events: int, until: float) -> None:
        """Wait, running orders meanwhile. Raises OSError when waiting is pointless."""
        while not self._wait_for(stream, events, max(0.0, until - time.monotonic())):
            if self._is_closing or not self._jobs or time.monotonic() >= until:
                raise TimeoutError(f"no answer from {self._address}, or nobody waits for it")

    def _name(self) -> str:
        return f"p-{self._hello.sender_epoch:x}-{self._hello.receiver_epoch:x}-{next(self._names)}"

    def _break(self) -> None:
        """Close the connection. Launched parts fail; jobs that were not launched may go on."""
        if self._agent is not None:
            self._agent.close()  # it reads nothing any more
            self._agent = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._is_busy = False
        self._owed.clear()
        self._void.clear()
        self._give_up_at = None
        begun = [job for job in self._jobs if job.launched or not job.ok]
        for job, part, _ in self._parts:
            self._source.release(part)
            job.n_under_way -= 1
            if job not in begun:
                begun.append(job)
        self._parts.clear()
        self._fail(begun)

    def _fail(self, jobs: list[_Job]) -> None:
        for job in jobs:
            if job in self._jobs:
                self._jobs.remove(job)
            job.ok = False
            self._end_if_over(job)

    def _leave(self) -> None:
        self._mailbox.take_orders()
        self._break()
        self._fail(list(self._jobs))
        self._source.close()
