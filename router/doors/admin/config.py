"""Operators' settings: shown for all routers, and changed at all of them or at none."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import grpc

from twolane.errors import (
    InvalidRequestError,
    PreconditionError,
    TwolaneError,
    UnavailableError,
)
from twolane.router.doors.admin.audited_acts import AuditedActs
from twolane.router.doors.admin.own import own_config
from twolane.router.doors.peer_calls import PeerCalls
from twolane.router.router import Router
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import Handler, unary
from twolane.v1 import acts_pb2, admin_pb2, cluster_pb2

KEPT_WITHIN_S = 10.0
MOST_VALUES = 100
_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION.value[0]
_INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]


class Configs:
    """Of one router; `peers` are the others."""

    def __init__(self, router: Router, peers: PeerCalls, audited: AuditedActs) -> None:
        self._operations = router.operations
        self._peers = peers
        self._audited = audited

    def methods(self) -> Mapping[str, Handler]:
        return {
            "GetConfig": unary(admin_pb2.GetConfigRequest, self._get),
            "SetConfig": unary(admin_pb2.SetConfigRequest, self._set),
            "ReloadConfig": unary(admin_pb2.ReloadConfigRequest, self._reload),
        }

    async def _get(
        self, request: admin_pb2.GetConfigRequest, context: Context
    ) -> admin_pb2.GetConfigResponse:
        configuration = self._operations.configuration
        whole = own_config(configuration, request)
        found, missing = await self._peers.look("GetConfig", request.SerializeToString())
        whole.unreached.extend(missing)
        mine = {
            its.name: its
            for its in whole.fields
            if its.live and not configuration.is_controllers(its.name)
        }
        for raw in found:
            part = admin_pb2.GetConfigResponse.FromString(raw)
            for its in part.fields:
                if its.name in mine and its.value != mine[its.name].value:
                    mine[its.name].differs[part.router_id] = its.value
        return whole

    async def _set(
        self, request: admin_pb2.SetConfigRequest, context: Context
    ) -> acts_pb2.ActResponse:
        values = dict(sorted(request.values.items()))  # a map has no order

        async def work() -> acts_pb2.ActResponse:
            if not 0 < len(values) <= MOST_VALUES:
                raise InvalidRequestError(f"name 1 to {MOST_VALUES} settings", field="values")
            configuration = self._operations.configuration
            if request.expect_revision not in (0, configuration.revision):
                raise PreconditionError(
                    f"the configuration is at revision {configuration.revision}, not "
                    f"{request.expect_revision}"
                )
            before = {its.name: its.value for its in configuration.fields([*values])}
            done = await self._change(request.act, context, values=values)
            changes = [
                acts_pb2.Change(subject=name, before=before.get(name, ""), after=value)
                for name, value in values.items()
                if before.get(name) != value
            ]
            changes += done.changes
            del done.changes[:]
            done.changes.extend(changes)
            return done

        return await self._audited.do(context, "config-set", " ".join(values), request.act, work)

    async def _reload(
        self, request: admin_pb2.ReloadConfigRequest, context: Context
    ) -> acts_pb2.ActResponse:
        async def work() -> acts_pb2.ActResponse:
            done = await self._change(request.act, context, reload=True)
            done.changes.add(subject="API keys", before="", after="read again, where they changed")
            return done

        return await self._audited.do(context, "config-reload", "API keys", request.act, work)

    async def _change(
        self,
        act: acts_pb2.Act,
        context: Context,
        *,
        values: Mapping[str, str] | None = None,
        reload: bool = False,
    ) -> acts_pb2.ActResponse:
        """Two rounds over all routers, and the controller between them. Nothing has changed where
        it raises, unless the controller has not answered: if it has kept the change, it says so
        with its next call, and what is ready then holds. So does a router that is lost in the
        second round."""
        configuration = self._operations.configuration
        revision = configuration.revision + 1
        asked = cluster_pb2.PrepareConfigRequest(
            revision=revision,
            values=values,
            who=self._audited.caller(context),
            reason=act.reason,
            reload=reload,
        )
        await self._prepare_all(asked)
        try:
            more = await self._keep(act, asked, configuration.changed(values or {}))
        except TwolaneError:  # it is not kept
            await self._forget(revision)
            raise
        if act.dry_run:
            await self._forget(revision)
        if more is None and act.dry_run:
            raise UnavailableError(f"the controller has not answered in {KEPT_WITHIN_S:g} s")
        if more is None:
            raise UnavailableError(
                f"the controller has not answered in {KEPT_WITHIN_S:g} s: it may still make the "
                "change, which `twolane config get` shows then"
            )
        if act.dry_run:
            current = configuration.revision
            return acts_pb2.ActResponse(dry_run=True, revision=current, changes=more)
        configuration.apply(revision)
        late = await self._peers.apply_config(revision)
        done = acts_pb2.ActResponse(revision=revision, changes=more)
        for why in late:
            done.changes.add(subject="late", before="", after=f"{why}: takes it within seconds")
        return done

    async def _prepare_all(self, asked: cluster_pb2.PrepareConfigRequest) -> None:
        """All routers hold it ready, or none. Raises `PreconditionError`."""
        self._operations.configuration.prepare(asked, asyncio.get_running_loop().time())
        try:
            refused = await self._peers.prepare_config(asked)
            if refused:
                raise PreconditionError(
                    "nothing has changed, as not all routers can: " + "; ".join(refused)
                )
        except (TwolaneError, asyncio.CancelledError):
            await self._forget(asked.revision)
            raise

    async def _forget(self, revision: int) -> None:
        self._operations.configuration.forget(revision)
        await self._peers.apply_config(revision, forget=True)

    async def _keep(
        self,
        act: acts_pb2.Act,
        asked: cluster_pb2.PrepareConfigRequest,
        values: Mapping[str, str],
    ) -> list[acts_pb2.Change] | None:
        """Have the controller check and apply its own settings, and keep all for routers that start
        later. Returns what follows from its own; None: it has not answered, and may still do that.
        Without a controller its own cannot be set."""
        mail, now = self._operations.controllers, asyncio.get_running_loop().time()
        is_controllers = self._operations.configuration.is_controllers
        if not mail.controllers(now) and not any(map(is_controllers, asked.values)):
            return []
        kept = acts_pb2.ControllerAct(
            who=asked.who,
            keep_config=acts_pb2.KeepConfigRequest(act=act, revision=asked.revision, values=values),
        )
        result = await mail.try_ask(kept, KEPT_WITHIN_S, now)
        if result is None:
            return None
        if result.code == _PRECONDITION:
            raise PreconditionError(f"the controller: {result.error}")
        if result.code == _INVALID:
            raise InvalidRequestError(result.error, field="values")
        if result.code:
            raise UnavailableError(f"the controller: {result.error}")
        return [its for its in result.response.changes if its.subject not in values]
