"""Acts that a controller carries out: it receives them with its next Supervise, and sends their
results with the one after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import grpc

from twolane.errors import InternalError, InvalidParameterError, PreconditionError
from twolane.router.doors.admin.audited_acts import AuditedActs
from twolane.router.router import Router
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import Handler, unary
from twolane.v1 import acts_pb2

_WITHIN_S = 30.0
# A fence command may take minutes, and so may hosts that read a model's files.
_SLOW_WITHIN_S = 600.0
_SLOW = {"kill", "start_rollout"}
_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION.value[0]


class Acts:
    """The acts of one router."""

    def __init__(self, router: Router, audited: AuditedActs) -> None:
        self._mail = router.operations.controllers
        self._audited = audited

    def methods(self) -> Mapping[str, Handler]:
        return {
            "KillWorker": unary(acts_pb2.KillWorkerRequest, self._kill),
            "CordonHost": unary(acts_pb2.CordonHostRequest, self._cordon),
            "DrainHost": unary(acts_pb2.DrainHostRequest, self._drain_host),
            "ScalePools": unary(acts_pb2.ScalePoolsRequest, self._scale),
            "FlipWorker": unary(acts_pb2.FlipWorkerRequest, self._flip),
            "SetScaler": unary(acts_pb2.SetScalerRequest, self._set_scaler),
            "StartRollout": unary(acts_pb2.StartRolloutRequest, self._start_rollout),
            "StepRollout": unary(acts_pb2.StepRolloutRequest, self._step_rollout),
        }

    async def _kill(
        self, request: acts_pb2.KillWorkerRequest, context: Context
    ) -> acts_pb2.ActResponse:
        asked = acts_pb2.ControllerAct(kill=request)
        what = "fence" if request.may_restart else "kill"
        return await self._ask(context, what, request.worker_id, request.act, asked)

    async def _cordon(
        self, request: acts_pb2.CordonHostRequest, context: Context
    ) -> acts_pb2.ActResponse:
        asked = acts_pb2.ControllerAct(cordon=request)
        what = "uncordon" if request.undo else "cordon"
        return await self._ask(context, what, request.host, request.act, asked)

    async def _drain_host(
        self, request: acts_pb2.DrainHostRequest, context: Context
    ) -> acts_pb2.ActResponse:
        asked = acts_pb2.ControllerAct(drain_host=request)
        return await self._ask(context, "drain-node", request.host, request.act, asked)

    async def _scale(
        self, request: acts_pb2.ScalePoolsRequest, context: Context
    ) -> acts_pb2.ActResponse:
        asked = acts_pb2.ControllerAct(scale=request)
        sizes = [f"{its.pool}={'auto' if its.auto else its.workers}" for its in request.pools]
        return await self._ask(context, "scale", " ".join(sizes), request.act, asked)

    async def _flip(
        self, request: acts_pb2.FlipWorkerRequest, context: Context
    ) -> acts_pb2.ActResponse:
        asked = acts_pb2.ControllerAct(flip=request)
        return await self._ask(context, "flip", request.worker_id, request.act, asked)

    async def _set_scaler(
        self, request: acts_pb2.SetScalerRequest, context: Context
    ) -> acts_pb2.ActResponse:
        asked = acts_pb2.ControllerAct(scaler=request)
        return await self._ask(context, "scaler", request.mode, request.act, asked)

    async def _start_rollout(
        self, request: acts_pb2.StartRolloutRequest, context: Context
    ) -> acts_pb2.ActResponse:
        asked = acts_pb2.ControllerAct(start_rollout=request)
        return await self._ask(context, "rollout", request.model_dir, request.act, asked)

    async def _step_rollout(
        self, request: acts_pb2.StepRolloutRequest, context: Context
    ) -> acts_pb2.ActResponse:
        steps = acts_pb2.StepRolloutRequest.Step
        if request.step not in steps.values():  # a newer client's
            known = ", ".join(steps.keys()[1:])
            raise InvalidParameterError("step", request.step, f"one of {known}")
        asked = acts_pb2.ControllerAct(step_rollout=request)
        step = steps.Name(request.step).removeprefix("STEP_").lower()
        return await self._ask(context, "rollout", step, request.act, asked)

    async def _ask(
        self,
        context: Context,
        what: str,
        subject: str,
        act: acts_pb2.Act,
        asked: acts_pb2.ControllerAct,
    ) -> acts_pb2.ActResponse:
        """Raises `PreconditionError` if the controller refuses, and as `ControllerMail.ask`."""
        asked.who = self._audited.caller(context)
        within_s = _SLOW_WITHIN_S if asked.WhichOneof("what") in _SLOW else _WITHIN_S

        async def work() -> acts_pb2.ActResponse:
            now = asyncio.get_running_loop().time()
            result = await self._mail.ask(asked, within_s, now)
            if result.code == _PRECONDITION:
                raise PreconditionError(result.error)
            if result.code:
                raise InternalError(f"the controller: {result.error}")
            return result.response

        return await self._audited.do(context, what, subject, act, work)
