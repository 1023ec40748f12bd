"""The rollout of the scripted cluster: its canary serves, and holds."""

from __future__ import annotations

from typing import Any

from twolane.v1 import acts_pb2, admin_pb2_grpc, cluster_pb2

Context = Any
_STEP = acts_pb2.StepRolloutRequest

ROLLOUT = cluster_pb2.RolloutStatus(
    state="canary",
    from_dir="/models/a",
    to_dir="/models/b",
    waits_for="an operator: resume or undo",
    canary_share=0.05,
    settled=["ab12"],
    workers=[
        cluster_pb2.RolloutWorker(name="prefill-0", now="serves", requests=2),
        cluster_pb2.RolloutWorker(name="prefill-1", is_new=True, now="serves"),
        cluster_pb2.RolloutWorker(name="decode-0", now="serves", requests=20),
        cluster_pb2.RolloutWorker(name="decode-1", is_new=True, now="serves", requests=1),
    ],
)


class ScriptedRollout(admin_pb2_grpc.AdminServiceServicer):
    """What is asked of a rollout."""

    async def StartRollout(
        self, request: acts_pb2.StartRolloutRequest, context: Context
    ) -> acts_pb2.ActResponse:
        return _done(request.act, request.model_dir, "/models/a")

    async def StepRollout(
        self, request: acts_pb2.StepRolloutRequest, context: Context
    ) -> acts_pb2.ActResponse:
        if request.step == _STEP.STEP_UNDO:
            return _done(request.act, "/models/a", "/models/b")
        state = "paused" if request.step == _STEP.STEP_PAUSE else "running"
        change = acts_pb2.Change(subject="rollout", before="canary", after=state)
        return acts_pb2.ActResponse(changes=[change], dry_run=request.act.dry_run)


def _done(act: acts_pb2.Act, to: str, former: str) -> acts_pb2.ActResponse:
    names = ("prefill-1", "decode-1")
    which = "new" if to == ROLLOUT.to_dir else "former"
    after = f"drain, stop, restart with the {which} revision"
    return acts_pb2.ActResponse(
        changes=[
            acts_pb2.Change(subject="rollout", before=former, after=to),
            *(acts_pb2.Change(subject=name, before="serves", after=after) for name in names),
        ],
        dry_run=act.dry_run,
    )
