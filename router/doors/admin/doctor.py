"""Gathers what a diagnosis needs: the status, and the facts of every router and worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from twolane.errors import InvalidRequestError
from twolane.router.doors.admin.own import OwnLooks
from twolane.router.doors.admin.worker_calls import WorkerCalls
from twolane.router.doors.peer_calls import PeerCalls
from twolane.router.members.member import MemberState
from twolane.router.operators.diagnosis import CHECKS, Facts, diagnose
from twolane.router.router import Router
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import Handler, unary
from twolane.v1 import admin_pb2, cluster_pb2, worker_pb2


class Doctor:
    """Of one router; `own` knows its facts."""

    def __init__(
        self,
        router: Router,
        look: Callable[[bool], cluster_pb2.GetClusterStatusResponse],
        peers: PeerCalls,
        workers: WorkerCalls,
        own: OwnLooks,
    ) -> None:
        self._router = router
        self._look = look
        self._peers = peers
        self._workers = workers
        self._own = own

    def methods(self) -> Mapping[str, Handler]:
        return {"Diagnose": unary(admin_pb2.DiagnoseRequest, self._diagnose)}

    async def _diagnose(
        self, request: admin_pb2.DiagnoseRequest, context: Context
    ) -> admin_pb2.DiagnoseResponse:
        unknown = sorted({*request.checks} - CHECKS.keys())
        if unknown:
            there = ", ".join(CHECKS)
            raise InvalidRequestError(
                f"there is no check {unknown[0]!r}; there are {there}", field="checks"
            )
        status = await self._peers.whole_status(self._look(False), without_requests=True)
        whole = await self._own.facts(request)
        found, missing = await self._peers.look("Diagnose", request.SerializeToString())
        for part in found:
            whole.processes.extend(admin_pb2.DiagnoseResponse.FromString(part).processes)
        whole.unreached.extend(missing)
        whole.processes.extend(await self._of_workers())
        facts = Facts(
            now=time.time(),
            status=status,
            processes={its.name: its.facts for its in whole.processes if not its.unreached},
            unreached={its.name: its.unreached for its in whole.processes if its.unreached},
        )
        whole.findings.extend(diagnose(facts, request.checks))
        whole.checks.extend(request.checks or CHECKS)
        return whole

    async def _of_workers(self) -> list[admin_pb2.NamedFacts]:
        """Each tries to reach those that it would send pages to."""
        members = [
            its for its in self._router.operations.members() if its.state is not MemberState.GONE
        ]
        takers = [its.announce.worker.endpoint for its in members if its.decodes]
        reach = worker_pb2.InspectRequest(facts=True, reach=takers)
        alone = worker_pb2.InspectRequest(facts=True)
        givers = [its for its in members if its.prefills]
        others = [its for its in members if not its.prefills]
        answers = zip(
            [*givers, *others],
            [
                *await self._workers.inspect_all(givers, reach),
                *await self._workers.inspect_all(others, alone),
            ],
            strict=True,
        )
        return [
            admin_pb2.NamedFacts(name=member.worker_id, unreached=answer)
            if isinstance(answer, str)
            else admin_pb2.NamedFacts(name=member.worker_id, facts=answer.facts)
            for member, answer in answers
        ]
