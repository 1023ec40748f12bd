"""A scripted router over in-memory links: the test double of `router`."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable

from twolane.params import SamplingParams
from twolane.rpc.link import LinkBrokenError
from twolane.rpc.params import params_to_proto
from twolane.testing.heard import HeardToken, heard
from twolane.testing.links import MemoryLink, link_pair
from twolane.v1 import drain_pb2, worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.attempts.owner import Owner
from twolane.worker.worker import Worker

Kind = worker_pb2.RowEvent.Kind
PREFILL, DECODE = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE


class ScriptedRouter:
    """Opens sessions with any number of workers, and records everything it receives.

    Created inside a TaskGroup that outlives its use; `wait_for` checks again after each message.
    """

    def __init__(
        self, tasks: asyncio.TaskGroup, router_id: str = "router", *, router_epoch: int = 1
    ) -> None:
        self.owner = Owner(router_id, router_epoch)
        self.tokens: dict[AttemptId, list[HeardToken]] = defaultdict(list)
        self.rows: dict[AttemptId, list[worker_pb2.RowEvent]] = defaultdict(list)
        self.loads: dict[str, worker_pb2.LoadReport] = {}
        self.found: list[worker_pb2.Found] = []
        self.adopted: list[worker_pb2.Adopted] = []
        self.n_messages = 0
        self.numbers: dict[str, int] = {}  # of the latest numbered message, by worker
        self._row_numbers: dict[AttemptId, int] = {}
        self._tasks = tasks
        self._links: dict[str, MemoryLink[worker_pb2.SessionRequest, worker_pb2.SessionResponse]]
        self._links = {}
        self._heard = asyncio.Event()

    # -- streams ----------------------------------------------------------------------------

    def open(self, worker: Worker, *, epoch: int | None = None, latency_s: float = 0.0005) -> None:
        """Open a (new) stream to the worker."""
        here: MemoryLink[worker_pb2.SessionRequest, worker_pb2.SessionResponse]
        there: MemoryLink[worker_pb2.SessionResponse, worker_pb2.SessionRequest]
        here, there = link_pair(latency_s)
        self._links[worker.context.worker_id] = here
        epoch = worker.context.epoch if epoch is None else epoch
        opening = worker_pb2.Open(
            router_id=self.owner.router_id,
            router_epoch=self.owner.router_epoch,
            worker_epoch=epoch,
        )
        here.send(worker_pb2.SessionRequest(open=opening))
        self._tasks.create_task(worker.serve_session(there))
        self._tasks.create_task(self._listen(worker.context.worker_id, here))

    def cut(self, worker: Worker) -> None:
        """Reset the stream; messages in flight are lost."""
        self._links.pop(worker.context.worker_id).break_now("cut")

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    # -- commands ---------------------------------------------------------------------------

    def send(self, worker: Worker, request: worker_pb2.SessionRequest) -> None:
        self._links[worker.context.worker_id].send(request)

    def assign(
        self,
        attempt: AttemptId,
        token_ids: Iterable[int],
        *,
        prefill: Worker,
        decode: Worker,
        params: SamplingParams,
        n_prompt: int | None = None,
        priority: int = 0,
        growth_tokens: int | None = None,
        time_left_s: float = 0.0,
        request_id: str = "",
        claim: int = 0,
        resume_hash: bytes = b"",
    ) -> None:
        """Send ASSIGN to both workers, or to the one that has both roles."""
        tokens = list(token_ids)
        request = worker_pb2.Assign(
            key=attempt.key,
            row=self.row_number(attempt),
            request_id=request_id,
            claim=claim,
            resume_hash=resume_hash,
            token_ids=tokens,
            n_prompt=len(tokens) if n_prompt is None else n_prompt,
            sampling=params_to_proto(params),
            priority=priority,
            time_left_ms=int(time_left_s * 1000),
            prefill=prefill.address,
            decode=decode.address,
            growth_tokens=params.max_tokens if growth_tokens is None else growth_tokens,
        )
        if prefill is decode:
            request.roles.extend([PREFILL, DECODE])
            self.send(prefill, worker_pb2.SessionRequest(assign=request))
            return
        for worker, role in ((prefill, PREFILL), (decode, DECODE)):
            half = worker_pb2.Assign()
            half.CopyFrom(request)
            half.roles.append(role)
            self.send(worker, worker_pb2.SessionRequest(assign=half))

    def row_number(self, attempt: AttemptId) -> int:
        """The number under which workers send its tokens; drawn on first use."""
        return self._row_numbers.setdefault(attempt, len(self._row_numbers) + 1)

    def retarget(
        self,
        worker: Worker,
        attempt: AttemptId,
        following: AttemptId,
        decode: worker_pb2.WorkerAddress,
    ) -> None:
        command = worker_pb2.Retarget(
            key=attempt.key,
            next_attempt=following.number,
            next_row=self.row_number(following),
            decode=decode,
        )
        self.send(worker, worker_pb2.SessionRequest(retarget=command))

    def cancel(self, attempt: AttemptId, *workers: Worker) -> None:
        request = worker_pb2.SessionRequest(cancel=worker_pb2.Cancel(keys=[attempt.key]))
        for worker in workers:
            self.send(worker, request)

    def attach(self, worker: Worker, attempt: AttemptId, from_index: int) -> None:
        attach = worker_pb2.Attach(
            key=attempt.key, from_index=from_index, row=self.row_number(attempt)
        )
        self.send(worker, worker_pb2.SessionRequest(attach=attach))

    async def find(
        self, worker: Worker, submission_id: str = "", *, tenant: str = "", request_id: str = ""
    ) -> worker_pb2.Found:
        """The worker's answer."""
        n_before = len(self.found)
        find = worker_pb2.Find(submission_id=submission_id, tenant=tenant, request_id=request_id)
        self.send(worker, worker_pb2.SessionRequest(find=find))
        await self.wait_for(lambda: len(self.found) > n_before)
        return self.found[-1]

    async def adopt(
        self, worker: Worker, submission_id: str, fence: int, resume_hash: bytes, tenant: str = ""
    ) -> worker_pb2.Adopted:
        """The worker's answer."""
        n_before = len(self.adopted)
        adopt = worker_pb2.Adopt(
            submission_id=submission_id, fence=fence, resume_hash=resume_hash, tenant=tenant
        )
        self.send(worker, worker_pb2.SessionRequest(adopt=adopt))
        await self.wait_for(lambda: len(self.adopted) > n_before)
        return self.adopted[-1]

    def drain(
        self,
        worker: Worker,
        *,
        enabled: bool = True,
        take_ticket: int = 0,
        begun: int | None = None,
    ) -> None:
        drain = drain_pb2.Drain(enabled=enabled, take_ticket=take_ticket, begun=begun)
        self.send(worker, worker_pb2.SessionRequest(drain=drain))

    def confirm(self, worker: Worker) -> None:
        """All that the worker has sent is processed."""
        beat = worker_pb2.Heartbeat(heard=self.numbers.get(worker.context.worker_id, 0))
        self.send(worker, worker_pb2.SessionRequest(heartbeat=beat))

    # -- hearing ----------------------------------------------------------------------------

    def answer(self, attempt: AttemptId) -> list[int]:
        """The received tokens by index, each once. Raises AssertionError if two disagree."""
        known: dict[int, int] = {}
        for event in self.tokens[attempt]:
            said = known.setdefault(event.index, event.token_id)
            assert said == event.token_id, f"index {event.index}: {said} and {event.token_id}"
        return [known[index] for index in sorted(known)]

    def finish_of(self, attempt: AttemptId) -> int:
        """The received finish reason; UNSPECIFIED if there is none yet."""
        return max((event.finish_reason for event in self.tokens[attempt]), default=0)

    def kinds(self, attempt: AttemptId, role: worker_pb2.Role | None = None) -> list[str]:
        """Names of the received row events (of that role), in order."""
        return [
            Kind.Name(event.kind).removeprefix("KIND_")
            for event in self.rows[attempt]
            if role is None or event.role == role
        ]

    async def wait_for(self, condition: Callable[[], bool], within_s: float = 60.0) -> None:
        """Wait until the condition holds. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while not condition():
                self._heard.clear()
                await self._heard.wait()

    async def wait_for_kind(self, attempt: AttemptId, kind: str, within_s: float = 60.0) -> None:
        """Wait until that row event is received. Raises TimeoutError."""
        await self.wait_for(lambda: kind in self.kinds(attempt), within_s)

    def _hear_tokens(self, told: Iterable[worker_pb2.TokenColumns]) -> None:
        attempts = {row: attempt for attempt, row in self._row_numbers.items()}
        for token in heard(told):
            self.tokens[attempts[token.row]].append(token)

    async def _listen(
        self,
        worker_id: str,
        link: MemoryLink[worker_pb2.SessionRequest, worker_pb2.SessionResponse],
    ) -> None:
        try:
            while True:
                message = await link.receive()
                self.n_messages += 1
                self.numbers[worker_id] = message.number or self.numbers.get(worker_id, 0)
                self._hear_tokens(message.tokens)
                for row in message.rows:
                    self.rows[AttemptId.of(row.key)].append(row)
                self.found += message.found
                self.adopted += message.adopted
                if message.HasField("load"):
                    self.loads[worker_id] = message.load
                self._heard.set()
        except LinkBrokenError:
            self._heard.set()
