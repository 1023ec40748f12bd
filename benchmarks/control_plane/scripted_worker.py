"""A prefill and a decode worker that compute nothing, in one process: load for a router only.

Started by `benchmarks.control_plane.router_overhead`. They announce themselves and implement
WorkerService like real ones, but their pages and transfers are simulated:

    Assign --> prefill: first token, at once ----> decode: one token per row and step

A step lasts `step_s`, or as long as the router takes to read it. The time that the prefill side
spent on a request is reported as `prefill_s`, so that a client can subtract it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from dataclasses import dataclass
from typing import Any

import grpc
from grpc.aio import EOF

from benchmarks.control_plane.scripted_row import ScriptConfig, ScriptedRow
from twolane.rpc.channel_options import CHANNEL_OPTIONS, INTERNAL_SERVER_OPTIONS
from twolane.rpc.columns import ColumnWriter
from twolane.rpc.secret import shown
from twolane.v1 import cluster_pb2, cluster_pb2_grpc, worker_pb2, worker_pb2_grpc

LOAD_EVERY_S, LOAD_LEAST_S = 1.0, 0.1  # as `worker.config.SessionConfig`
_PLENTY, _PAGE_TOKENS = 1_000_000, 16
_Kind = worker_pb2.RowEvent


class ScriptedWorker(worker_pb2_grpc.WorkerServiceServicer):
    """What both roles share: an address, and one stream to one router."""

    def __init__(self, config: ScriptConfig, role: worker_pb2.Role) -> None:
        self.config = config
        self.role = role
        self.name = worker_pb2.Role.Name(role).removeprefix("ROLE_").lower()
        self.address = worker_pb2.WorkerAddress(
            worker_id=f"scripted-{self.name}", epoch=secrets.randbits(63) | 1
        )
        self.columns = ColumnWriter(role)
        self.wake = asyncio.Event()

    async def Session(self, _: Any, context: Any) -> None:
        assert (await context.read()).WhichOneof("command") == "open"
        opened = worker_pb2.Opened(worker=self.address)
        await context.write(worker_pb2.SessionResponse(opened=opened, load=self._load()))
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._write(context))
            while (request := await context.read()) is not EOF:
                match request.WhichOneof("command"):
                    case "assign":
                        self.assign(request.assign)
                    case "cancel":
                        for key in request.cancel.keys:
                            self.cancel(key)
            writer.cancel()

    async def _write(self, context: Any) -> None:
        """One message per step while there is something to send, some of them with a load report,
        and load reports alone in between."""
        now = asyncio.get_running_loop().time
        due_s = load_due_s = now()
        while True:
            try:
                async with asyncio.timeout(LOAD_EVERY_S):
                    await self.wake.wait()
            except TimeoutError:
                await context.write(worker_pb2.SessionResponse(load=self._load()))
                continue
            due_s = max(due_s + self.pause_s, now())
            await asyncio.sleep(due_s - now())
            response = self.tell()
            if response.tokens or response.rows:
                if now() >= load_due_s:
                    response.load.CopyFrom(self._load())
                    load_due_s = now() + LOAD_LEAST_S
                await context.write(response)

    def row_event(
        self,
        key: worker_pb2.AttemptKey,
        kind: worker_pb2.RowEvent.Kind,
        figures: worker_pb2.RowFigures | None = None,
    ) -> worker_pb2.RowEvent:
        event = worker_pb2.RowEvent(key=key, kind=kind, figures=figures)
        event.role = self.role
        return event

    def announcement(self) -> cluster_pb2.AnnounceRequest:
        config = self.config
        return cluster_pb2.AnnounceRequest(
            worker=self.address,
            roles=[self.role],
            model=config.model,
            fingerprint="5c",
            n_pages=_PLENTY,
            page_tokens=_PAGE_TOKENS,
            max_context_tokens=config.max_context_tokens,
            vocab_size=config.vocab_size,
            decode_rows=config.decode_rows,
        )

    def _load(self) -> worker_pb2.LoadReport:
        return worker_pb2.LoadReport(pages=worker_pb2.PageCounts(free=_PLENTY))

    # -- the roles' part ----------------------------------------------------------------------

    pause_s = 0.0

    def assign(self, assign: worker_pb2.Assign) -> None:
        raise NotImplementedError

    def cancel(self, key: worker_pb2.AttemptKey) -> None:
        raise NotImplementedError

    def tell(self) -> worker_pb2.SessionResponse:
        """Everything that this step has to send. Clears `wake` if nothing is left."""
        raise NotImplementedError


@dataclass(slots=True)
class _Prompt:
    row: ScriptedRow
    assigned_s: float


class ScriptedPrefill(ScriptedWorker):
    """Answers an Assign with the first token, and hands the row to `decode`."""

    def __init__(self, config: ScriptConfig, decode: ScriptedDecode) -> None:
        super().__init__(config, worker_pb2.ROLE_PREFILL)
        self._decode = decode
        self._prompts: list[_Prompt] = []

    def assign(self, assign: worker_pb2.Assign) -> None:
        index = len(assign.token_ids) - assign.n_prompt
        sampling = assign.sampling
        top = sampling.top_logprobs if sampling.HasField("top_logprobs") else None
        row = ScriptedRow(assign.key, assign.row, index, sampling.max_tokens, top)
        self._prompts.append(_Prompt(row, asyncio.get_running_loop().time()))
        self.wake.set()

    def cancel(self, key: worker_pb2.AttemptKey) -> None:
        """Does nothing: no row stays here long enough to be cancelled."""

    def tell(self) -> worker_pb2.SessionResponse:
        response = worker_pb2.SessionResponse()
        now = asyncio.get_running_loop().time()
        for prompt in self._prompts:
            row = prompt.row
            row.tell(self.columns, self.config)
            figures = worker_pb2.RowFigures(prefill_s=now - prompt.assigned_s)
            response.rows.append(self.row_event(row.key, _Kind.KIND_HANDED_OVER, figures))
            self._decode.join(row)
        if self._prompts:
            response.tokens.append(self.columns.take())
        self._prompts.clear()
        self.wake.clear()
        return response


class ScriptedDecode(ScriptedWorker):
    """One token per row and step. A row starts when its prefill has sent the first token."""

    def __init__(self, config: ScriptConfig) -> None:
        super().__init__(config, worker_pb2.ROLE_DECODE)
        self.pause_s = config.step_s
        self._rows: list[ScriptedRow] = []

    def _load(self) -> worker_pb2.LoadReport:
        used = sum(row.index // _PAGE_TOKENS for row in self._rows)
        pages = worker_pb2.PageCounts(used=used, free=_PLENTY - used)
        return worker_pb2.LoadReport(pages=pages, rows=len(self._rows), step_s=self.pause_s)

    def assign(self, assign: worker_pb2.Assign) -> None:
        """Does nothing: the prefill worker's ASSIGN is enough, since both are in one process."""

    def cancel(self, key: worker_pb2.AttemptKey) -> None:
        self._rows = [row for row in self._rows if row.key != key]

    def join(self, row: ScriptedRow) -> None:
        self._rows.append(row)
        self.wake.set()

    def tell(self) -> worker_pb2.SessionResponse:
        response = worker_pb2.SessionResponse()
        for row in self._rows:
            if row.is_new:
                row.is_new = False
                response.rows.append(self.row_event(row.key, _Kind.KIND_JOINED))
            row.tell(self.columns, self.config)
            row.index += 1
            if row.index == row.end:
                response.rows.append(self.row_event(row.key, _Kind.KIND_FINISHED))
        if self._rows:
            response.tokens.append(self.columns.take())
        self._rows = [row for row in self._rows if row.index < row.end]
        if not self._rows:
            self.wake.clear()
        return response


async def serve(config: ScriptConfig) -> None:
    """Both workers, until cancelled."""
    decode = ScriptedDecode(config)
    workers: list[ScriptedWorker] = [ScriptedPrefill(config, decode), decode]
    servers = []
    for worker in workers:
        server = grpc.aio.server(options=INTERNAL_SERVER_OPTIONS)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)
        worker.address.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        servers.append(server)
    async with grpc.aio.insecure_channel(config.router, options=CHANNEL_OPTIONS) as channel:
        stub = cluster_pb2_grpc.MembershipServiceStub(channel)
        try:
            while True:
                for worker in workers:
                    answer = await stub.Announce(
                        worker.announcement(),
                        wait_for_ready=True,
                        timeout=30,
                        metadata=shown(config.secret),
                    )
                await asyncio.sleep(answer.interval_ms / 1000)
        finally:
            for server in servers:
                await server.stop(grace=None)


async def _serve_until_stdin_closes(config: ScriptConfig) -> None:
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve(config))
        await asyncio.to_thread(sys.stdin.read)  # exit with the parent process
        serving.cancel()


def main() -> None:
    """The process: reads its config as one line of JSON from standard input."""
    config = ScriptConfig(**json.loads(sys.stdin.readline()))
    asyncio.run(_serve_until_stdin_closes(config))


if __name__ == "__main__":
    main()
