"""A door that answers by script: the prompt says what happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from tests.twolane.ops.scripted_admin import TOP, ScriptedAdmin
from twolane import errors
from twolane.rpc.errors import end_call
from twolane.v1 import (
    acts_pb2,
    admin_pb2,
    admin_pb2_grpc,
    cluster_pb2,
    drain_pb2,
    inference_pb2,
    sampling_pb2,
    worker_pb2,
)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

EPOCH = 2**63 + 5  # of decode-0
PAGES = worker_pb2.PageCounts(quarantined=1, used=2, pinned=3, cached=4, free=90)

ERRORS: dict[str, errors.TwolaneError] = {
    "invalid": errors.InvalidRequestError("too long", field="text", metadata={"limit": "7"}),
    "denied": errors.PermissionDeniedError("not from here"),
    "duplicate": errors.DuplicateRequestError("id in use"),
    "unknown model": errors.UnknownModelError("no such model", metadata={"served": "a, b"}),
    "overloaded": errors.OverloadedError("queue is full", retry_after_s=1.5),
    "deadline": errors.DeadlineError("cannot be met"),
    "cancelled": errors.CancelledError("an operator cancelled it"),
    "unavailable": errors.UnavailableError("no decode worker"),
    "unimplemented": errors.UnimplementedError("n is reserved"),
    "internal": errors.InternalError("NaN logits"),
}


class ScriptedDoor(ScriptedAdmin):
    """Implements InferenceService and AdminService.

    Prompts: a key of `ERRORS` fails; `forever` streams until cancelled; `silent` says nothing;
    `no end` stops without a finish reason; `fails late` fails after two tokens; everything else
    is answered word by word. `requests` and `ended` tell what came and which calls were left.
    """

    def __init__(self) -> None:
        self.requests: dict[str, inference_pb2.GenerateRequest] = {}
        self.ended: dict[str, str] = {}
        self.drained: list[tuple[str, bool]] = []
        self.taken: list[tuple[str, int]] = []
        self.reasons: list[str] = []  # of drains
        self.hands_over = False
        self.never_safe = False
        self._cancelled: dict[str, asyncio.Event] = {}

    def register(self, server: grpc.aio.Server) -> None:
        from twolane.v1 import inference_pb2_grpc

        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self, server)

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        self.requests[request.request_id] = request
        self._cancelled[request.request_id] = asyncio.Event()
        try:
            async for response in self._answer(request, context):
                yield response
            self.ended[request.request_id] = "finished"
        finally:
            self.ended.setdefault(request.request_id, "left")

    async def _answer(
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        start = inference_pb2.GenerateResponse(request_id=request.request_id, seed=42)
        match request.text:
            case key if key in ERRORS:
                await end_call(context, ERRORS[key])
            case "silent":
                await asyncio.Event().wait()
            case "forever":
                yield start
                cancelled = self._cancelled[request.request_id]
                for index in range(1_000_000):
                    yield self._token(request, index, "x ")
                    await asyncio.sleep(0.01)
                    if cancelled.is_set():
                        await end_call(context, errors.CancelledError("cancelled by id"))
                        return
            case "no end":
                yield start
                yield self._token(request, 0, "half")
            case "fails late":
                yield start
                yield self._token(request, 0, "one ")
                yield self._token(request, 1, "two ")
                await end_call(context, errors.UnavailableError("out of attempts"))
            case _:
                yield start
                words = request.text.split() or [str(i) for i in request.token_ids.ids]
                for index, word in enumerate(words):
                    yield self._token(request, index, f"{word} ")
                yield inference_pb2.GenerateResponse(
                    finish_reason=sampling_pb2.FINISH_REASON_LENGTH,
                    ledger=sampling_pb2.Ledger(ttft_s=0.25, output_tokens=len(words), attempts=1),
                )

    @staticmethod
    def _token(
        request: inference_pb2.GenerateRequest, index: int, text: str
    ) -> inference_pb2.GenerateResponse:
        token = inference_pb2.Token(index=index, token_id=100 + index)
        if request.sampling.HasField("top_logprobs"):
            token.logprob = -0.5
            token.top_logprobs.add(token_id=7, logprob=-1.5)
        return inference_pb2.GenerateResponse(tokens=[token], text=text)

    async def Resume(self, request: inference_pb2.ResumeRequest, context: Context) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    async def Multiplex(self, requests: object, context: Context) -> None:
        """Like a router of an earlier version."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    async def Cancel(
        self, request: inference_pb2.CancelRequest, context: Context
    ) -> inference_pb2.CancelResponse:
        event = self._cancelled.get(request.request_id)
        if event is not None:
            event.set()
        return inference_pb2.CancelResponse(found=event is not None)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        model = inference_pb2.Model(
            name="tiny", fingerprint="ab12", max_context_tokens=2048, vocab_size=512
        )
        return inference_pb2.ListModelsResponse(models=[model])

    async def GetStatus(
        self, request: inference_pb2.GetStatusRequest, context: Context
    ) -> inference_pb2.GetStatusResponse:
        status = inference_pb2.GetStatusResponse(serving=True)
        status.models.add(name="tiny", max_context_tokens=2048)
        status.workers.add(state="alive", role="decode", workers=1)
        for submission_id in request.submission_ids:
            status.submissions.add(submission_id=submission_id, state="running", output_tokens=7)
        return status

    async def WhoAmI(
        self, request: inference_pb2.WhoAmIRequest, context: Context
    ) -> inference_pb2.WhoAmIResponse:
        shown = dict(context.invocation_metadata() or ()).get("authorization")
        if shown is None:
            return inference_pb2.WhoAmIResponse(role="client")
        quota = inference_pb2.QuotaStatus(name="tokens", limit=600, remaining=-20, reset_s=62)
        return inference_pb2.WhoAmIResponse(
            role="client", name=str(shown), tenant="acme", quotas=[quota]
        )

    async def GetClusterStatus(
        self, request: cluster_pb2.GetClusterStatusRequest, context: Context
    ) -> cluster_pb2.GetClusterStatusResponse:
        if request.without_requests:
            self.n_looks += 1
            return TOP
        worker = cluster_pb2.WorkerStatus(
            worker=worker_pb2.WorkerAddress(worker_id="decode-0", epoch=EPOCH, endpoint="h:1"),
            roles=[worker_pb2.ROLE_DECODE],
            state="alive",
            model="tiny",
            load=worker_pb2.LoadReport(
                pages=PAGES,
                rows=3,
                decode_queue=1,
                step_s=0.02,
                transports=[
                    worker_pb2.PeerTransport(
                        worker_id="prefill-0", transport="shm", instead_of="cuda_ipc: refused"
                    )
                ],
            ),
            requests=3,
            pool="writers",
            devices=["GPU-1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901", "1"],
            metrics_endpoint="127.0.0.1:9101",
        )
        gone = cluster_pb2.WorkerStatus(
            worker=worker_pb2.WorkerAddress(worker_id="prefill-9", epoch=7, endpoint="h:2"),
            roles=[worker_pb2.ROLE_PREFILL],
            state="gone",
        )
        waiting = cluster_pb2.RequestStatus(
            request_id="r1",
            state="decode",
            prefill_worker="prefill-0",
            decode_worker="decode-0",
            attempt=2,
            age_s=1.5,
        )
        return cluster_pb2.GetClusterStatusResponse(
            router_id="router-0",
            uptime_s=12.0,
            http_endpoint="127.0.0.1:7202",
            metrics_endpoint="127.0.0.1:9100",
            workers=[worker, gone],
            hosts=TOP.hosts,
            requests=[waiting],
            requests_by_state={"decode": 1},
            counters={"finished": 9, "dropped.unknown_row": 69},
        )

    async def DrainWorker(
        self, request: cluster_pb2.DrainWorkerRequest, context: Context
    ) -> cluster_pb2.DrainWorkerResponse:
        if request.worker_id != "decode-0":
            error = errors.InvalidRequestError("no such worker", field="worker_id")
            await end_call(context, error)
            return cluster_pb2.DrainWorkerResponse()
        if request.expect_epoch not in (0, EPOCH):
            await end_call(context, errors.PreconditionError("it was started again"))
            return cluster_pb2.DrainWorkerResponse()
        done = acts_pb2.ActResponse(dry_run=request.act.dry_run)
        states = ("draining", "alive") if request.undo else ("alive", "draining")
        done.changes.add(subject=request.worker_id, before=states[0], after=states[1])
        if request.act.dry_run:
            return cluster_pb2.DrainWorkerResponse(response=done)
        self.reasons.append(request.act.reason)
        if request.take_ticket:
            self.taken.append((request.worker_id, request.take_ticket))
        else:
            self.drained.append((request.worker_id, request.undo))
            self.hands_over = request.hand_over
        return cluster_pb2.DrainWorkerResponse(response=done)

    async def WatchDrain(
        self, request: admin_pb2.WatchDrainRequest, context: Context
    ) -> AsyncIterator[admin_pb2.WatchDrainResponse]:
        yield admin_pb2.WatchDrainResponse(state="alive")
        rows = drain_pb2.DrainBlocker(kind="rows", count=2, names=["r1", "r2"])
        drain = drain_pb2.DrainReport(number=3, blockers=[rows], eta_s=12.3)
        yield admin_pb2.WatchDrainResponse(state="draining", drain=drain)
        drain.eta_s = 7.1  # which is no news
        yield admin_pb2.WatchDrainResponse(state="draining", drain=drain)
        if self.never_safe:
            await asyncio.sleep(60)
        drain = drain_pb2.DrainReport(number=3, has_ticket=True)
        yield admin_pb2.WatchDrainResponse(state="draining", drain=drain)
