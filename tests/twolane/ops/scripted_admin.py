"""Answers of operators' looks, always the same: the golden output is made from them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeAlias

import grpc

from tests.twolane.ops.scripted_events import EVENTS, NOW
from tests.twolane.ops.scripted_rollout import ROLLOUT, ScriptedRollout
from tests.twolane.ops.scripted_scaler import SCALER, ScriptedScaler
from tests.twolane.ops.scripted_settings import MISSING, ScriptedSettings
from twolane.v1 import (
    acts_pb2,
    admin_pb2,
    cluster_pb2,
    sampling_pb2,
    worker_pb2,
)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
SLOW = cluster_pb2.RequestStatus(
    request_id="r1",
    submission_id="3f2a9c1e7d5b4a608899aabbccddeeff",
    state="running",
    attempt=2,
    prefill_worker="prefill-1",
    decode_worker="decode-0",
    prompt_tokens=1800,
    output_tokens=212,
    age_s=6.4,
    tenant="acme",
    model="tiny",
    router_id="router-1",
    arrived_at=NOW - 6.4,
    ttft_s=0.92,
    silent_s=1.8,
)
WAITING = cluster_pb2.RequestStatus(
    request_id="batch-7",
    submission_id="91c0ffee000000000000000000000001",
    state="queued",
    prompt_tokens=30,
    age_s=0.35,
    model="tiny",
    router_id="router-0",
    arrived_at=NOW - 0.35,
    silent_s=0.35,
)
TRACE = admin_pb2.RequestTrace(
    request=SLOW,
    ledger=sampling_pb2.Ledger(
        queued_s=0.12,
        prefill_wait_s=0.2,
        prefill_s=0.6,
        transfer_s=0.3,
        decode_wait_s=0.05,
        decode_s=2.9,
        ttft_s=0.92,
        attempts=2,
        cached_tokens=512,
        transfer_pages=113,
        transfer_bytes=29_622_272,
    ),
    spans=[
        admin_pb2.TraceSpan(name=name, attempt=n, where=where, start_s=a, end_s=b, open=is_open)
        for name, n, where, a, b, is_open in (
            ("queued", 0, "", 0.0, 0.12, False),
            ("prefill wait", 1, "prefill-0", 0.12, 0.32, False),
            ("prefill", 1, "prefill-0", 0.32, 0.92, False),
            ("transfer", 1, "prefill-0 > decode-1", 0.92, 1.22, False),
            ("decode", 1, "decode-1", 1.22, 2.6, False),
            ("resume wait", 0, "", 2.6, 2.65, False),
            ("prefill", 2, "prefill-1", 2.65, 3.25, False),
            ("transfer", 2, "prefill-1 > decode-0", 3.25, 3.5, False),
            ("decode", 2, "decode-0", 3.5, 6.4, True),
        )
    ],
    marks=[
        admin_pb2.TraceMark(at_s=at, what=what, attempt=n, where=where, note=note)
        for at, what, n, where, note in (
            (0.12, "placed", 1, "prefill-0 > decode-1", ""),
            (0.92, "first token", 1, "prefill-0", ""),
            (1.22, "joined", 1, "decode-1", ""),
            (2.6, "retry", 1, "prefill-0 > decode-1", "decode_worker_lost"),
            (2.65, "placed", 2, "prefill-1 > decode-0", ""),
            (3.5, "joined", 2, "decode-0", ""),
        )
    ],
)
PAGES = [
    admin_pb2.WorkerPages(
        worker=worker_pb2.WorkerAddress(worker_id="decode-0", epoch=2**63 + 5, endpoint="h:1"),
        pages=worker_pb2.PageCounts(quarantined=3, used=70, pinned=8, cached=9, free=10),
        total=100,
        rows=[
            admin_pb2.PagesOfRow(
                submission_id=SLOW.submission_id,
                request_id="r1",
                attempt=2,
                state="running",
                tokens=2012,
                pages=32,
            )
        ],
        rows_left_out=3,
    ),
    admin_pb2.WorkerPages(
        worker=worker_pb2.WorkerAddress(worker_id="prefill-0", epoch=7, endpoint="h:2"),
        pages=worker_pb2.PageCounts(free=100),
        total=100,
        unreached="has not answered in 2 s",
    ),
]


def _worker(
    name: str, role: worker_pb2.Role, state: str = "alive", **load: Any
) -> cluster_pb2.WorkerStatus:
    return cluster_pb2.WorkerStatus(
        worker=worker_pb2.WorkerAddress(worker_id=name, epoch=len(name), endpoint="h:1"),
        roles=[role],
        state=state,
        host=f"node-{name[-1]}",
        load=worker_pb2.LoadReport(**load),
    )


_P, _D = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE
TOP = cluster_pb2.GetClusterStatusResponse(
    router_id="router-0",
    requests_by_state={"running": 40, "queued": 3},
    hosts=[
        cluster_pb2.HostStatus(name="node-b", state="up", cordoned=True),  # and empty
        cluster_pb2.HostStatus(name="node-0", state="up", lost=["decode-9"]),
    ],
    workers=[
        _worker(
            "prefill-0",
            _P,
            step_p50_s=0.05,
            step_p99_s=0.09,
            prefill_queue_tokens=7200,
            prefill_tokens_per_s=9000.0,
            pages=worker_pb2.PageCounts(used=60, free=40),
        ),
        _worker(
            "prefill-1",
            _P,
            "suspect",
            step_p50_s=0.05,
            step_age_s=12.0,
            step_bound_s=5.0,
            pages=worker_pb2.PageCounts(used=10, free=90),
        ),
        _worker(
            "decode-0",
            _D,
            rows=20,
            step_p50_s=0.02,
            step_p99_s=0.03,
            decode_tokens_per_s=1000.0,
            pages=worker_pb2.PageCounts(used=40, cached=10, free=50),
        ),
        _worker(
            "decode-1",
            _D,
            rows=20,
            step_p50_s=0.09,
            step_p99_s=0.4,
            decode_tokens_per_s=220.0,
            pages=worker_pb2.PageCounts(used=42, cached=8, free=50),
        ),
    ],
    routers=[
        cluster_pb2.RouterStatus(address=worker_pb2.RouterAddress(router_id="router-0")),
        MISSING,
    ],
    pools=[
        cluster_pb2.PoolStatus(pool="prefill", workers=2, alive=1, starting=1, gpus_a_worker=1),
        cluster_pb2.PoolStatus(
            pool="decode", workers=2, alive=2, gpus_a_worker=4, pinned=True, pinned_for_s=1800
        ),
    ],
    scaler=SCALER,
    rollout=ROLLOUT,
)


class ScriptedAdmin(ScriptedSettings, ScriptedScaler, ScriptedRollout):
    """The looks. `is_broken`: a worker's tables are off. `silent`: who does not answer about pages.
    A worker is killed after `kill_looks` more at the status without requests, which are counted."""

    is_broken = False
    silent: tuple[str, ...] = ("prefill-0",)
    kill_looks = n_looks = 0
    logs: Iterator[acts_pb2.ReadLogResponse] | None = None  # answers, one by one

    async def ListRequests(
        self, request: admin_pb2.ListRequestsRequest, context: Context
    ) -> admin_pb2.ListRequestsResponse:
        if self.is_new:
            return admin_pb2.ListRequestsResponse()
        return admin_pb2.ListRequestsResponse(
            requests=[SLOW, WAITING][: request.page_size], total=2, unreached=[MISSING]
        )

    async def GetRequest(
        self, request: admin_pb2.GetRequestRequest, context: Context
    ) -> admin_pb2.GetRequestResponse:
        is_known = request.id in (SLOW.request_id, SLOW.submission_id[:8])
        return admin_pb2.GetRequestResponse(trace=TRACE if is_known else None)

    async def CancelRequest(
        self, request: admin_pb2.CancelRequestRequest, context: Context
    ) -> acts_pb2.ActResponse:
        change = acts_pb2.Change(subject=request.submission_id, before="running", after="cancelled")
        return acts_pb2.ActResponse(changes=[change], dry_run=request.act.dry_run)

    async def ListEvents(
        self, request: admin_pb2.ListEventsRequest, context: Context
    ) -> admin_pb2.ListEventsResponse:
        events = [event for event in EVENTS if not request.audit or event.HasField("audit")]
        return admin_pb2.ListEventsResponse(events=events, remembered_since=NOW - 3600)

    async def WatchEvents(
        self, request: admin_pb2.WatchEventsRequest, context: Context
    ) -> AsyncIterator[admin_pb2.WatchEventsResponse]:
        for event in EVENTS:
            yield admin_pb2.WatchEventsResponse(events=[event])
        yield admin_pb2.WatchEventsResponse(unreached=[MISSING])
        await asyncio.sleep(0)

    async def GetPages(
        self, request: admin_pb2.GetPagesRequest, context: Context
    ) -> admin_pb2.GetPagesResponse:
        found = admin_pb2.GetPagesResponse(workers=PAGES)
        for its in found.workers:
            if its.worker.worker_id not in self.silent:
                its.unreached = ""
        if request.check:
            found.unreached.extend([MISSING] * (MISSING.address.router_id in self.silent))
            found.workers[0].checked = True
            found.routers.add(router_id="router-0")
            if self.is_broken:
                found.workers[0].integrity_error = "99 pages are counted, of 100"
        return found

    async def ReadLog(
        self, request: acts_pb2.ReadLogRequest, context: Context
    ) -> acts_pb2.ReadLogResponse:
        if self.logs is not None:
            if (answer := next(self.logs, None)) is None:
                await context.abort(grpc.StatusCode.INTERNAL, "the end")
            return answer
        lines = ["08:00:00 I twolane.worker: serves", "08:00:01 W twolane.worker: a step of 2 s"]
        source = "the agent of node-a" if request.from_file else f"{request.name} {7:016x}"
        return acts_pb2.ReadLogResponse(lines=lines, last_line=2, source=source)

    async def ScalePools(
        self, request: acts_pb2.ScalePoolsRequest, context: Context
    ) -> acts_pb2.ActResponse:
        if request.expect_revision not in (0, 7):
            why = f"sizes are at revision 7, not {request.expect_revision}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        return acts_pb2.ActResponse(
            changes=[
                acts_pb2.Change(subject="pool decode", before="2", after="3, pinned for 3600 s"),
                acts_pb2.Change(subject="decode-2", after="starts on node-b"),
                acts_pb2.Change(subject="in the end", before="6 of 8 GPUs", after="8 of 8 GPUs"),
            ],
            dry_run=request.act.dry_run,
            revision=7 + (not request.act.dry_run),
        )

    async def CordonHost(
        self, request: acts_pb2.CordonHostRequest, context: Context
    ) -> acts_pb2.ActResponse:
        states = "open", "cordoned"
        before, after = states[::-1] if request.undo else states
        change = acts_pb2.Change(subject=f"host {request.host}", before=before, after=after)
        return acts_pb2.ActResponse(changes=[change], dry_run=request.act.dry_run)

    async def DrainHost(
        self, request: acts_pb2.DrainHostRequest, context: Context
    ) -> acts_pb2.ActResponse:
        drains = "drains, is stopped on its ticket; it has 3 requests"
        return acts_pb2.ActResponse(
            changes=[
                acts_pb2.Change(subject="host node-c", before="open", after="cordoned"),
                acts_pb2.Change(subject="decode-1", before="runs on node-c", after=drains),
                acts_pb2.Change(subject="decode-2", after="starts on node-b"),
                acts_pb2.Change(
                    subject="router-1",
                    before="runs on node-c",
                    after="stays: it is no worker",
                    stays=True,
                ),
            ],
            dry_run=request.act.dry_run,
        )

    async def KillWorker(
        self, request: acts_pb2.KillWorkerRequest, context: Context
    ) -> acts_pb2.ActResponse:
        until = self.n_looks + self.kill_looks
        while self.n_looks < until:
            await asyncio.sleep(0.005)
        again = "and" if request.may_restart else "not"
        change = acts_pb2.Change(
            subject=request.worker_id,
            before="runs on node-b",
            after=f"is killed, {again} started again",
        )
        response = acts_pb2.ActResponse(changes=[change], dry_run=request.act.dry_run)
        if request.worker_id == "decode-9":
            response.not_proven = "node-z silent; no fence command"
        elif not request.act.dry_run:
            response.proof = f"{request.worker_id} killed by SIGKILL (proof of class A)"
            response.proof_class = "A"
        return response

    async def OpenConsole(
        self, request: admin_pb2.OpenConsoleRequest, context: Context
    ) -> admin_pb2.OpenConsoleResponse:
        return admin_pb2.OpenConsoleResponse(
            url="http://127.0.0.1:7202/console", token="tlc.1.operator..ab12", valid_until=NOW
        )

    async def Diagnose(
        self, request: admin_pb2.DiagnoseRequest, context: Context
    ) -> admin_pb2.DiagnoseResponse:
        warning = admin_pb2.Finding(
            check="certificates",
            severity=admin_pb2.Finding.SEVERITY_WARNING,
            subject="decode-1",
            text="decode-1.crt ends in 30 h",
            mend="`twolane certs renew`, on the host where the authority is",
        )
        fault = admin_pb2.Finding(
            check="controllers",
            severity=admin_pb2.Finding.SEVERITY_FAULT,
            subject="controllers",
            text="2 controllers act: c1, c2",
            mend="leave c2, which came last, and end the process of each other one with "
            "`kill -KILL PID`: Ctrl-C would stop the cluster with it",
        )
        named = [admin_pb2.NamedFacts(name=name) for name in ("router-0", "decode-1")]
        return admin_pb2.DiagnoseResponse(
            findings=[fault, warning] if self.is_broken else [warning],
            checks=request.checks or ["certificates", "controllers"],
            processes=named,
            unreached=[MISSING],
        )
