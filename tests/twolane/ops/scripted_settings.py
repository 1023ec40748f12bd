"""Answers about settings and checks, always the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from twolane.v1 import acts_pb2, admin_pb2, cluster_pb2, worker_pb2

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
MISSING = cluster_pb2.RouterStatus(
    address=worker_pb2.RouterAddress(router_id="router-2"), unreached="Deadline Exceeded"
)


class ScriptedSettings:
    """`is_broken`: routers differ, and so do answers. `is_new`: no controller has called the
    router yet, and no client. A check leaves out the workers of `left_out`, which are silent."""

    is_broken = False
    left_out: tuple[str, ...] = ()
    is_new = False

    async def GetConfig(
        self, request: admin_pb2.GetConfigRequest, context: Context
    ) -> admin_pb2.GetConfigResponse:
        found = [
            cluster_pb2.ConfigField(name="log_level", value='"info"', default='"info"', live=True),
            cluster_pb2.ConfigField(
                name="router.port", value="7300", default="7200", source="file"
            ),
            cluster_pb2.ConfigField(
                name="router.max_queued", value="2000", default="1024", live=True, source="operator"
            ),
            cluster_pb2.ConfigField(
                name="scaler.budget", value="8", default="null", live=True, source="file"
            ),
        ]
        found[0].source = "default"
        if self.is_broken:
            found[2].differs["router-1"] = "1024"
        if self.is_new:
            found.pop()
        found = [its for its in found if its.name.startswith(tuple(request.names or [""]))]
        return admin_pb2.GetConfigResponse(
            fields=found, revision=3, unreached=[MISSING], without_controllers=self.is_new
        )

    async def SetConfig(
        self, request: admin_pb2.SetConfigRequest, context: Context
    ) -> acts_pb2.ActResponse:
        changes = [
            acts_pb2.Change(subject=name, before="null", after=value)
            for name, value in request.values.items()
        ]
        is_dry = request.act.dry_run
        return acts_pb2.ActResponse(changes=changes, dry_run=is_dry, revision=3 + (not is_dry))

    async def ReloadConfig(
        self, request: admin_pb2.ReloadConfigRequest, context: Context
    ) -> acts_pb2.ActResponse:
        change = acts_pb2.Change(subject="API keys", after="read again, where they changed")
        return acts_pb2.ActResponse(changes=[change], dry_run=request.act.dry_run, revision=4)

    async def CheckCluster(
        self, request: admin_pb2.CheckClusterRequest, context: Context
    ) -> AsyncIterator[admin_pb2.CheckClusterResponse]:
        for name in self.left_out:
            yield admin_pb2.CheckClusterResponse(
                prefill_worker=name, decode_worker=name, error="it is suspect", left=3
            )
        pairs = [("prefill-0", "prefill-0"), ("decode-0", "decode-0"), ("prefill-0", "decode-0")]
        for left, (prefill, decode) in zip((2, 1, 0), pairs, strict=True):
            its = admin_pb2.CheckClusterResponse(prefill_worker=prefill, decode_worker=decode)
            if not request.act.dry_run:
                its.reference, its.prompts, its.equal, its.left = "prefill-0", 4, True, left
                its.tokens = 128
                if self.is_broken and not left:
                    its.equal, its.differs_at, its.prompt_tokens = False, 17, 33
                    its.difference = "token 9 instead of 7"
            yield its
        await asyncio.sleep(0)
