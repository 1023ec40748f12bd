"""The scaler of the scripted cluster."""

from __future__ import annotations

from typing import Any

from twolane.v1 import acts_pb2, admin_pb2_grpc, cluster_pb2

Context = Any

SCALER = cluster_pb2.ScalerStatus(
    mode="on",
    budget_gpus=12,
    held_gpus=10,
    unit="GPUs",
    ttft_s=0.5,
    gap_s=0.02,
    attainment=0.991,
    has_attainment=True,
    decisions=900,
    pools=[
        cluster_pb2.ScaledPool(
            pool="prefill", have=2, target=3, need=3, least=1, most=8, load=2.31
        ),
        cluster_pb2.ScaledPool(pool="decode", have=2, target=2, need=2, least=1, most=2, load=1.6),
    ],
    actions=["start a prefill worker: prefill has 2 of 3"],
    reasons=[
        "start a prefill worker: prefill has 2 of 3",
        "prefill: 2 workers, 3 wanted; 3 needed: 99.1k prompt tokens/s forecast in 75 s",
        "decode: 2 workers, 2 wanted, pinned by an operator",
    ],
    deeds=[cluster_pb2.ScalerDeed(ago_s=62.0, text="drain prefill-2: prefill has 3")],
)


class ScriptedScaler(admin_pb2_grpc.AdminServiceServicer):
    """What is asked of the scaler, and of a worker that is to flip."""

    async def FlipWorker(
        self, request: acts_pb2.FlipWorkerRequest, context: Context
    ) -> acts_pb2.ActResponse:
        return acts_pb2.ActResponse(
            changes=[
                acts_pb2.Change(
                    subject=request.worker_id,
                    before="decodes",
                    after="prefills at once; its 20 requests run out",
                ),
                acts_pb2.Change(subject="pool decode", before="2", after="1, pinned"),
                acts_pb2.Change(subject="pool prefill", before="2", after="3, pinned"),
            ],
            dry_run=request.act.dry_run,
        )

    async def SetScaler(
        self, request: acts_pb2.SetScalerRequest, context: Context
    ) -> acts_pb2.ActResponse:
        change = acts_pb2.Change(subject="scaler", before="on", after=request.mode)
        return acts_pb2.ActResponse(changes=[change], dry_run=request.act.dry_run)
