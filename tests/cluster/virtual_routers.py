"""Several routers before the workers of a virtual cluster, and clients that go from one to another.

A router can be killed (nothing of it is heard any more), paused (what it says and hears waits, its
clients go elsewhere, and it learns of that when it is back), and cut off from a worker. `Witness`
sees all that passes at the workers' ends of sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from tests.cluster.witness import WatchedLink, Witness
from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster
from twolane.errors import TakenOverError, UnavailableError, UnknownSubmissionError
from twolane.params import SamplingParams
from twolane.router.config import DispatchConfig, MembershipConfig, RouterConfig
from twolane.router.members.membership import NameTakenError
from twolane.router.router import Router
from twolane.router.store import ADMITTED, Ask, Found, LocalStore, Placement, Verdict
from twolane.router.testing.client import resume
from twolane.rpc.link import LinkBrokenError
from twolane.rpc.params import params_to_proto
from twolane.testing.links import MemoryLink
from twolane.v1 import inference_pb2, worker_pb2
from twolane.worker.doors.announcer import Announcer
from twolane.worker.worker import Worker


class SharedStore(LocalStore):
    """One for all routers. While it is lost it says yes, and forgets nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.is_lost = False
        self._index: dict[str, Found] = {}

    async def admit(self, ask: Ask) -> Verdict:
        return ADMITTED if self.is_lost else await super().admit(ask)

    def place(self, submission_id: str, placement: Placement) -> None:
        if not self.is_lost:
            self._index[submission_id] = Found("some router", "", placement)

    async def find(self, submission_id: str) -> Found | None:
        return None if self.is_lost else self._index.get(submission_id)

    def release(self, submission_id: str, n_tokens: int) -> None:
        if not self.is_lost:
            super().release(submission_id, n_tokens)


class GatedLink:
    """A session's end at its router. While the router is paused, what it says and hears waits."""

    def __init__(self, link: MemoryLink[Any, Any], gate: asyncio.Event) -> None:
        self.inner = link
        self._gate = gate
        self._held: list[Any] = []

    def send(self, message: Any) -> None:
        if self._gate.is_set():
            self.inner.send(message)
        else:
            self._held.append(message)

    async def receive(self) -> Any:
        message = await self.inner.receive()
        await self._gate.wait()
        return message

    def release(self) -> None:
        held, self._held = self._held, []
        with contextlib.suppress(LinkBrokenError):
            for message in held:
                self.inner.send(message)

    def close(self) -> None:
        self.inner.close()


class RouterLife:
    """One router process, and its calls. Is its router's dialer."""

    def __init__(self, cluster: RoutedCluster, router_id: str) -> None:
        self.cluster = cluster
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_dead = False
        self.cut_from: set[str] = set()  # workers
        self.calls: set[asyncio.Task[None]] = set()
        self.links: list[tuple[str, GatedLink]] = []
        self.router = Router(
            RouterConfig(
                router_id=router_id,
                membership=MembershipConfig(gone_after_s=10.0),
                dispatch=DispatchConfig(max_failures=40),
            ),
            self,
            store=cluster.store,
        )
        self.router.address.grpc_endpoint = router_id

    @property
    def is_paused(self) -> bool:
        return not self.gate.is_set()

    def pause(self) -> None:
        self.gate.clear()

    async def resume(self) -> None:
        """It says what it would have said meanwhile, and learns that its clients have left."""
        self.gate.set()
        for _, link in self.links:
            link.release()
        await asyncio.sleep(0.002)
        await self.hang_up()

    async def hang_up(self) -> None:
        calls = list(self.calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)

    async def kill(self) -> None:
        """kill -9: no last words."""
        self.is_dead = True
        for _, link in self.links:
            link.inner.break_now("killed")
        await self.hang_up()
        await self.router.__aexit__(None, None, None)

    def cut(self, worker_id: str) -> None:
        self.cut_from.add(worker_id)
        for name, link in self.links:
            if name == worker_id:
                link.inner.break_now("no route to host")

    def heal(self, worker_id: str) -> None:
        self.cut_from.discard(worker_id)

    async def dial_worker(self, address: worker_pb2.WorkerAddress) -> GatedLink:
        await self.gate.wait()
        if self.is_dead or address.endpoint in self.cut_from:
            raise LinkBrokenError("no route to host")
        link = GatedLink(self.cluster.dial_session(address.endpoint), self.gate)
        self.links = [(name, one) for name, one in self.links if not one.inner._why]
        self.links.append((address.endpoint, link))
        return link


class RoutedCluster(VirtualCluster):
    """Made by `routed_cluster`. `router` of the base is the first of `routers`."""

    def __init__(self, shape: Shape, tasks: asyncio.TaskGroup, seed: int, n_routers: int) -> None:
        super().__init__(shape, tasks, seed)
        self.witness = Witness()
        self.store = SharedStore()
        self.routers = {f"r{n}": RouterLife(self, f"r{n}") for n in range(n_routers)}
        self.router = self.routers["r0"].router
        self.n_resumed = self.n_regenerated = self.n_moved = 0

    async def start_router(self, router_id: str) -> None:
        """Another process under that id."""
        self.routers[router_id] = RouterLife(self, router_id)
        await self.routers[router_id].router.__aenter__()

    def dial_session(self, worker_id: str) -> MemoryLink[Any, Any]:
        async def serve(worker: Worker, link: MemoryLink[Any, Any]) -> None:
            watched: Any = WatchedLink(link, self.witness, worker.context.epoch)
            await worker.serve_session(watched)

        return self._dial(worker_id, serve)

    async def _announce(self, worker: Worker) -> None:
        announcer, worker_id = Announcer(worker), worker.config.worker_id
        while True:
            for life in list(self.routers.values()):
                is_reached = not life.is_dead and not life.is_paused
                if is_reached and worker_id not in life.cut_from:
                    with contextlib.suppress(NameTakenError):
                        life.router.announce(announcer.describe())
            await asyncio.sleep(worker.config.announce_every_s)

    def _left_over(self) -> list[str]:
        left = [one for one in super()._left_over() if not one.startswith("router: ")]
        for name, life in self.routers.items():
            if not life.is_dead:
                left += [f"{name}: {request}" for request in life.router.status().requests]
        return left

    # -- clients ----------------------------------------------------------------------------

    async def ask_on(
        self, prompt: Sequence[int], params: SamplingParams, request_id: str = ""
    ) -> list[int]:
        """As an SDK does: while its router is lost, it goes to the next one with what it has."""
        client = _Client(self, prompt, params, request_id)
        while not client.is_done:
            life = await self._a_router()
            call = asyncio.create_task(client.call(life))
            life.calls.add(call)
            call.add_done_callback(life.calls.discard)
            client.begin(call)
            await client.wait(life)
        return client.tokens

    async def _a_router(self) -> RouterLife:
        while True:
            able = [r for r in self.routers.values() if not r.is_dead and not r.is_paused]
            if able:
                return self.random.choice(able)
            await asyncio.sleep(0.05)


class _Client:
    """One answer, as its client has it."""

    def __init__(
        self,
        cluster: RoutedCluster,
        prompt: Sequence[int],
        params: SamplingParams,
        request_id: str,
    ) -> None:
        self.tokens: list[int] = []
        self.is_done = False
        self._cluster = cluster
        self._request = inference_pb2.GenerateRequest(
            request_id=request_id,
            token_ids=inference_pb2.TokenIds(ids=prompt),
            sampling=params_to_proto(params),
            resumes=True,
        )
        self._first: inference_pb2.GenerateResponse | None = None
        self._takeover = 0
        self._is_lost = False  # nothing of it is left at the workers
        self._current: asyncio.Task[None] | None = None

    def begin(self, call: asyncio.Task[None]) -> None:
        self._current = call

    async def wait(self, life: RouterLife) -> None:
        """Until the call has ended, or its router is silent."""
        call = self._current
        assert call is not None
        while not call.done() and not life.is_paused:
            await asyncio.wait([call], timeout=0.05)
        self._current = None  # what it may still say is said to nobody
        if call.done() and not call.cancelled() and call.exception() is not None:
            raise call.exception()  # type: ignore[misc]

    async def call(self, life: RouterLife) -> None:
        me = asyncio.current_task()
        try:
            async with aclosing(self._answer(life.router)) as answer:
                async for response in answer:
                    await life.gate.wait()
                    if self._current is me:
                        self._hear(response)
        except UnknownSubmissionError:
            self._is_lost = True
        except (TakenOverError, UnavailableError):
            await asyncio.sleep(0.01)

    def _answer(self, router: Router) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        if self._first is None:
            return router.generate(self._request)
        self._takeover += 1
        submission_id, token = self._first.submission_id, self._first.resume_token
        if not self._is_lost:
            self._cluster.n_resumed += 1
            return resume(
                router,
                inference_pb2.ResumeRequest(
                    submission_id=submission_id,
                    resume_token=token,
                    takeover=self._takeover,
                    n_tokens=len(self.tokens),
                ),
            )
        self._is_lost = False
        self._cluster.n_regenerated += 1
        again = inference_pb2.GenerateRequest()
        again.CopyFrom(self._request)
        again.request_id = self._first.request_id
        again.sampling.seed = self._first.seed
        again.resume.submission_id = submission_id
        again.resume.resume_token = token
        again.resume.takeover = self._takeover
        again.resume.token_ids.extend(self.tokens)
        return router.generate(again)

    def _hear(self, response: inference_pb2.GenerateResponse) -> None:
        self._first = self._first or response
        for token in response.tokens:
            assert token.index == len(self.tokens), "a token was lost or came twice"
            self.tokens.append(token.token_id)
        self._cluster.n_moved += response.moved
        if response.finish_reason:
            self.is_done = True


@asynccontextmanager
async def routed_cluster(
    shape: Shape, n_routers: int, seed: int = 0
) -> AsyncIterator[RoutedCluster]:
    """A cluster in which every router serves."""
    async with asyncio.TaskGroup() as tasks:
        cluster = RoutedCluster(shape, tasks, seed, n_routers)
        for life in cluster.routers.values():
            await life.router.__aenter__()
        for number, roles in enumerate(shape.roles):
            cluster.start(f"{roles}{number}", roles)
        while not all(life.router.can_serve() for life in cluster.routers.values()):
            await asyncio.sleep(0.05)
        await asyncio.sleep(2.5)  # a router that has just begun waits for workers to announce
        yield cluster
        for life in cluster.routers.values():
            if not life.is_dead:
                await life.kill()
        for name in list(cluster.lives):
            await cluster.kill(name)
