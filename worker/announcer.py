"""Tells every router, each second, that this worker exists. The router dials it back."""

from __future__ import annotations

import asyncio
import logging

import grpc

from twolane.rpc.options import CHANNEL_OPTIONS
from twolane.v1 import cluster_pb2, cluster_pb2_grpc
from worker.worker import Worker

log = logging.getLogger(__name__)

_CALL_S = 2.0


class Announcer:
    """`run` until cancelled, then perhaps `leave`."""

    def __init__(self, worker: Worker, *, metrics_port: int | None) -> None:
        self._worker = worker
        self._metrics_port = metrics_port

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for router in self._worker.config.routers:
                tasks.create_task(self._tell_each_second(router), name=f"announce-{router}")

    async def leave(self) -> None:
        """Last words to every router; one that does not answer is not waited for long."""
        async with asyncio.TaskGroup() as tasks:
            for router in self._worker.config.routers:
                tasks.create_task(self._tell_once(router))

    def describe(self, *, leaving: bool = False) -> cluster_pb2.AnnounceRequest:
        worker, spec = self._worker, self._worker.site.spec
        host = worker.config.advertise_host or worker.config.host
        return cluster_pb2.AnnounceRequest(
            worker=worker.address,
            roles=worker.roles.names,
            model=spec.model,
            fingerprint=spec.fingerprint,
            n_pages=spec.n_pages,
            page_tokens=spec.page_tokens,
            max_context_tokens=spec.max_context_tokens,
            vocab_size=spec.vocab_size,
            eos_token_ids=spec.eos_token_ids,
            decode_rows=worker.config.limits.decode_rows,
            metrics_endpoint="" if self._metrics_port is None else f"{host}:{self._metrics_port}",
            leaving=leaving,
            layout=spec.layout,
            makes_dtypes=worker.makes_dtypes,
            pool=worker.config.pool,
            devices=worker.config.devices,
        )

    async def _tell_each_second(self, router: str) -> None:
        async with grpc.aio.insecure_channel(router, options=CHANNEL_OPTIONS) as channel:
            stub = cluster_pb2_grpc.MembershipServiceStub(channel)
            is_known = False
            while True:
                pause_s = self._worker.config.announce_every_s
                try:
                    answer = await stub.Announce(self.describe(), timeout=_CALL_S)
                    pause_s = answer.interval_ms / 1000 or pause_s
                    if not is_known:
                        log.info("router %s knows this worker", router)
                    is_known = True
                except grpc.aio.AioRpcError as error:
                    if is_known:
                        log.warning("router %s does not answer: %s", router, error.details())
                    is_known = False
                await asyncio.sleep(pause_s)

    async def _tell_once(self, router: str) -> None:
        async with grpc.aio.insecure_channel(router, options=CHANNEL_OPTIONS) as channel:
            stub = cluster_pb2_grpc.MembershipServiceStub(channel)
            try:
                await stub.Announce(self.describe(leaving=True), timeout=_CALL_S)
            except grpc.aio.AioRpcError as error:
                log.info("router %s did not hear that we leave: %s", router, error.details())
