"""The gRPC service for clients, a thin layer over `Router`.

Clients can request answers and see the state of their own submissions. Everything else is for
operators, at their own door.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import asdict
from functools import partial

import grpc

from twolane.errors import InvalidParameterError, InvalidRequestError
from twolane.router.deliveries import Delivery
from twolane.router.doors.multiplex import Multiplexed
from twolane.router.doors.peer_calls import PeerCalls
from twolane.router.doors.peer_door import cancel_here
from twolane.router.limits import check_id_length, check_tenant
from twolane.router.requests.trace_context import CALLED_BY, RESPONSE, TraceHeaders
from twolane.router.router import Router
from twolane.rpc.call_gate import CallGate, Context
from twolane.rpc.handlers import streams, unary, unary_stream
from twolane.security.gate import Gate
from twolane.security.identity import Role
from twolane.v1 import inference_pb2

INFERENCE = "twolane.v1.InferenceService"
MAX_SUBMISSION_IDS = 1000


class Door:
    """The door for clients. Workers use `twolane.router.doors.worker_door`, operators
    `twolane.router.doors.admin.door`."""

    def __init__(self, router: Router, gate: Gate, peers: PeerCalls) -> None:
        """`peers` calls the other routers, which may have the submission that a call names."""
        self._router = router
        self._peers = peers
        self._gate = gate
        self._streams: set[Multiplexed] = set()
        self._is_ending = False

    def end_streams(self) -> None:
        """The router is stopping: multiplexed streams end when their answers have ended. So do
        those whose call has come by now and whose handler has not begun."""
        self._is_ending = True
        for stream in self._streams:
            stream.end()

    def handlers(self, calls: CallGate) -> list[grpc.GenericRpcHandler]:
        services = {
            INFERENCE: {
                "Generate": unary_stream(
                    inference_pb2.GenerateRequest, self._generate, calls, check=self._check_room
                ),
                "Resume": unary_stream(inference_pb2.ResumeRequest, self._resume, calls),
                "Multiplex": streams(
                    inference_pb2.MultiplexRequest, partial(self._multiplex, calls)
                ),
                "Cancel": unary(inference_pb2.CancelRequest, self._cancel, calls),
                "ListModels": unary(inference_pb2.ListModelsRequest, self._list_models, calls),
                "GetStatus": unary(inference_pb2.GetStatusRequest, self._get_status, calls),
                "WhoAmI": unary(inference_pb2.WhoAmIRequest, self._who_am_i, calls),
            },
        }
        return [
            grpc.method_handlers_generic_handler(name, methods)
            for name, methods in services.items()
        ]

    def _check_room(self, context: Context) -> None:
        caller = self._gate.identity(context)
        self._router.check_room(caller, time_left_s=context.time_remaining())

    async def _generate(self, request: inference_pb2.GenerateRequest, context: Context) -> None:
        caller, time_left_s = self._gate.identity(context), context.time_remaining()
        self._note_trace(context)
        opening = self._router.open(request, caller, time_left_s=time_left_s)
        await self._answer(await opening, context)

    async def _resume(self, request: inference_pb2.ResumeRequest, context: Context) -> None:
        caller, time_left_s = self._gate.identity(context), context.time_remaining()
        self._note_trace(context)
        opening = self._router.open_resumed(request, caller, time_left_s=time_left_s, resumes=True)
        await self._answer(await opening, context)

    def _note_trace(self, context: Context) -> None:
        if self._router.traces.is_on:
            CALLED_BY.set(TraceHeaders.of(context.invocation_metadata() or ()))

    async def _answer(self, delivery: Delivery, context: Context) -> None:
        # A generator that has not begun would not close the delivery.
        with delivery:
            trace = delivery.request.job.trace
            # An operation of its own: only for callers that trace.
            if trace is not None and CALLED_BY.get().parent:
                await context.send_initial_metadata(((RESPONSE, trace.header),))
            async with aclosing(delivery.responses()) as answer:
                async for response in answer:
                    await context.write(response)

    async def _multiplex(self, calls: CallGate, context: Context) -> None:
        async with calls.entered(context):
            stream = Multiplexed(context, calls, partial(self._open_answer, context))
            if self._is_ending:
                stream.end()
            self._streams.add(stream)
            try:
                await stream.run()
            finally:
                self._streams.discard(stream)

    async def _open_answer(self, context: Context, start: inference_pb2.AnswerStart) -> Delivery:
        # For each answer, because an API key may have been revoked.
        caller = self._gate.identity(context)
        CALLED_BY.set(TraceHeaders(start.traceparent, start.tracestate))
        if start.WhichOneof("call") == "resume":
            left_s = start.timeout_s or None
            return await self._router.open_resumed(
                start.resume, caller, time_left_s=left_s, resumes=True
            )
        alone = inference_pb2.GenerateRequest()
        # A copy, so that its prompt does not keep the whole message alive.
        alone.CopyFrom(start.generate)
        return await self._router.open(alone, caller, time_left_s=start.timeout_s or None)

    async def _cancel(
        self, request: inference_pb2.CancelRequest, context: Context
    ) -> inference_pb2.CancelResponse:
        caller = self._gate.identity(context)
        check_tenant(request.tenant, caller)
        if bool(request.request_id) == bool(request.submission_id):
            text = "name a request either by request_id or by submission_id"
            raise InvalidRequestError(text, field="request_id")
        field = "request_id" if request.request_id else "submission_id"
        check_id_length(field, getattr(request, field))
        request.tenant = caller.tenant
        found = cancel_here(self._router, request) or await self._peers.cancel(request)
        return inference_pb2.CancelResponse(found=found)

    async def _list_models(
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        return inference_pb2.ListModelsResponse(models=self._models())

    async def _get_status(
        self, request: inference_pb2.GetStatusRequest, context: Context
    ) -> inference_pb2.GetStatusResponse:
        n_ids = len(request.submission_ids)
        if n_ids > MAX_SUBMISSION_IDS:
            raise InvalidParameterError(
                "len(submission_ids)", n_ids, f"at most {MAX_SUBMISSION_IDS}"
            )
        for submission_id in request.submission_ids:
            check_id_length("submission_ids", submission_id)
        caller = self._gate.identity(context)
        status = self._router.service_status(request.submission_ids, tenant=caller.tenant)
        missing = {*request.submission_ids} - {its.submission_id for its in status.submissions}
        if missing:
            found = await self._peers.find(caller.tenant, sorted(missing))
            status.submissions.extend(found)
        status.models.extend(self._models())
        return status

    async def _who_am_i(
        self, request: inference_pb2.WhoAmIRequest, context: Context
    ) -> inference_pb2.WhoAmIResponse:
        caller = self._gate.identity(context)
        quotas = self._router.quotas(caller.tenant) if caller.role is Role.CLIENT else []
        return inference_pb2.WhoAmIResponse(
            role=caller.role.value,
            name=caller.name,
            tenant=caller.tenant,
            quotas=[inference_pb2.QuotaStatus(**asdict(quota)) for quota in quotas],
        )

    def _models(self) -> list[inference_pb2.Model]:
        return [
            inference_pb2.Model(
                name=model.name,
                fingerprint=model.fingerprint,
                max_context_tokens=model.max_context_tokens,
                vocab_size=model.vocab_size,
            )
            for model in self._router.models()
        ]
