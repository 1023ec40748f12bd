"""Lets an operator cancel a request of any tenant at any router."""

from __future__ import annotations

from collections.abc import Mapping

from twolane.errors import InvalidRequestError, PreconditionError
from twolane.router.doors.admin.audited_acts import AuditedActs
from twolane.router.doors.admin.looks import Looks
from twolane.router.doors.peer_calls import PeerCalls
from twolane.router.router import Router
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import Handler, unary
from twolane.v1 import acts_pb2, admin_pb2, inference_pb2


class Cancels:
    """`peers` calls the other routers; `looks` finds the request of an id."""

    def __init__(
        self, router: Router, peers: PeerCalls, looks: Looks, audited: AuditedActs
    ) -> None:
        self._router = router
        self._peers = peers
        self._looks = looks
        self._audited = audited

    def methods(self) -> Mapping[str, Handler]:
        return {"CancelRequest": unary(admin_pb2.CancelRequestRequest, self._cancel)}

    async def _cancel(
        self, request: admin_pb2.CancelRequestRequest, context: Context
    ) -> acts_pb2.ActResponse:
        name = request.submission_id

        async def work() -> acts_pb2.ActResponse:
            return await self._cancel_now(name, is_dry=request.act.dry_run)

        return await self._audited.do(context, "cancel", name, request.act, work)

    async def _cancel_now(self, name: str, *, is_dry: bool) -> acts_pb2.ActResponse:
        found = await self._looks.find(admin_pb2.GetRequestRequest(id=name))
        status = found.trace.request
        if not found.HasField("trace") or status.submission_id != name:
            missing = [router.address.router_id for router in found.unreached]
            text = f"; not asked, because they do not answer: {', '.join(missing)}" * bool(missing)
            raise InvalidRequestError(
                f"no router answers a submission {name!r}{text}", field="submission_id"
            )
        done = acts_pb2.ActResponse(dry_run=is_dry)
        if status.finish:
            return done
        done.changes.add(subject=name, before=status.state, after="cancelled")
        if not (is_dry or await self._end(name, status.tenant)):
            raise PreconditionError(f"{name} has ended meanwhile")
        return done

    async def _end(self, submission_id: str, tenant: str) -> bool:
        if self._router.operations.cancel_request(submission_id):
            return True
        asked = inference_pb2.CancelRequest(submission_id=submission_id, tenant=tenant)
        return await self._peers.cancel(asked)
