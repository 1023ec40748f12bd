"""The supervisor's calls to all routers. If one does not answer, the answers of the others
count."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from twolane.deploy.launch.router_client import RouterClient
from twolane.deploy.process.handshake import Handle
from twolane.security.credentials import Credentials
from twolane.v1 import acts_pb2, cluster_pb2, worker_pb2

# Values of WorkerStatus.state, best first.
_BEST = ("alive", "draining", "suspect", "joining", "gone")


@dataclass(frozen=True, slots=True)
class Asked:
    """An act, and the router that wants the answer."""

    act: acts_pb2.ControllerAct
    of: RouterClient


@dataclass(frozen=True, slots=True)
class Look:
    """What routers have told at one time."""

    workers: list[cluster_pb2.WorkerStatus]
    asked: list[Asked]
    has_heard: bool = True  # the events that were told
    traffic: dict[str, cluster_pb2.Traffic] = field(default_factory=dict)  # by router
    everywhere: frozenset[int] = frozenset()  # epochs that every router that answers calls alive
    proven: frozenset[int] = frozenset()  # epochs that were lost, and whose end a router can prove
    answering: frozenset[str] = frozenset()  # the routers that answer
    silent: frozenset[str] = frozenset()  # those that let the call's time pass


class RouterClients:
    """An async context manager around a client for each router. A restarted router has the same
    ports."""

    def __init__(self, routers: Sequence[Handle], credentials: Credentials) -> None:
        self._credentials = credentials
        self._addresses = [_address(router) for router in routers]
        self._clients = [RouterClient(router, credentials, self._addresses) for router in routers]
        self._listener = self._clients[0] if self._clients else None  # to events
        self._stack = AsyncExitStack()

    async def add(self, router: Handle) -> None:
        """Add a router that started later than the others, and report it to them."""
        self._addresses.append(_address(router))
        client = RouterClient(router, self._credentials, self._addresses)
        self._clients.append(await self._stack.enter_async_context(client))

    async def is_serving(self) -> bool:
        return all(await asyncio.gather(*(client.is_serving() for client in self._clients)))

    async def supervise(self, report: cluster_pb2.SuperviseRequest) -> Look:
        """Tell all routers what the controller knows, but its events only the first that answers:
        operators are shown the events of all routers, whichever they ask. Returns the members of
        all, each as that router sees it that thinks best of it, and the acts that each hands out;
        nothing while none answers."""
        best: dict[int, cluster_pb2.WorkerStatus] = {}
        acts = []
        quiet = cluster_pb2.SuperviseRequest()
        quiet.CopyFrom(report)
        del quiet.events[:]
        answers = await asyncio.gather(
            *(
                client.supervise(report if client is self._listener else quiet)
                for client in self._clients
            )
        )
        heard = self._listener in self._clients and answers[self._clients.index(self._listener)]
        answering = [c for c, its in zip(self._clients, answers, strict=True) if its is not None]
        if not heard:
            self._listener = next(iter(answering), self._listener)
        for client, answer in zip(self._clients, answers, strict=True):
            if answer is None:
                continue
            acts += [Asked(act, client) for act in answer.acts]
            for member in answer.workers:
                other = best.setdefault(member.worker.epoch, member)
                if _BEST.index(member.state) < _BEST.index(other.state):
                    best[member.worker.epoch] = member
        traffic = {
            address.router_id: answer.traffic
            for address, answer in zip(self._addresses, answers, strict=True)
            if answer is not None and answer.HasField("traffic")
        }
        everywhere = alive_everywhere([its for its in answers if its is not None])
        proven = frozenset(epoch for its in answers if its is not None for epoch in its.proven)
        return Look(
            [*best.values()],
            acts,
            bool(heard),
            traffic,
            everywhere,
            proven,
            answering=frozenset(client.name for client in answering),
            silent=frozenset(client.name for client in self._clients if client.is_silent),
        )

    async def drain(self, request: cluster_pb2.DrainWorkerRequest) -> str:
        """By the first router that can: the worker tells the others. What takes it back is for all
        of them, as each remembers what it was asked for. Returns why it was not done; empty: it
        was."""
        why = "there is no router"
        for client in self._clients:
            why = await client.drain(request)
            if not why and not (request.undo or request.forget):
                break
        return why

    async def known_to_all(self, state: str) -> set[int]:
        """The epochs that have this state at every router."""
        seen = await asyncio.gather(*(client.workers() for client in self._clients))
        return set.intersection(
            *({member.worker.epoch for member in its if member.state == state} for its in seen)
        )

    async def report_gone(self, epoch: int, proof_class: str = "A") -> bool:
        """Report to all routers that `epoch` is proven dead. False if one was not reached: try
        again."""
        tasks = (client.report_gone(epoch, proof_class) for client in self._clients)
        return all(await asyncio.gather(*tasks))

    async def __aenter__(self) -> Self:
        for client in self._clients:
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)


def alive_everywhere(answers: Sequence[cluster_pb2.SuperviseResponse]) -> frozenset[int]:
    """The epochs of workers that all these routers call alive."""
    alive = [
        {member.worker.epoch for member in answer.workers if member.state == _BEST[0]}
        for answer in answers
    ]
    return frozenset(set.intersection(*alive) if alive else ())


def _address(router: Handle) -> worker_pb2.RouterAddress:
    return worker_pb2.RouterAddress(
        router_id=router.name,
        workers_endpoint=router.worker_endpoint,
        grpc_endpoint=router.endpoint,
        http_endpoint=router.http_endpoint,
    )
