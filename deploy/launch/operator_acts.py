"""Does what operators ask a controller to do, as routers hand it out.

An act is decided as a whole and told in full before anything is done; with `dry_run` that is all.
One that comes again under the same id is answered as the first was. Each is audited.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import grpc

from twolane.deploy.controller import acts, rollout_acts
from twolane.deploy.controller.acts import Decided
from twolane.deploy.controller.desired import Change, Desired
from twolane.deploy.controller.reconcile import View
from twolane.deploy.controller.rollout_acts import step_in_words
from twolane.deploy.controller.scaler import Scaler
from twolane.deploy.controller.seats import Inventory
from twolane.deploy.errors import DeposedError, NotProvenError, RefusedError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.launcher import Hosts
from twolane.deploy.launch.pools import Pools
from twolane.deploy.scaling.live_settings import LiveScalerSettings
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.revision import Fit, fit_everywhere, read_in_time
from twolane.deploy.spec.settings import MOST_WORKERS
from twolane.errors import InvalidRequestError
from twolane.v1 import acts_pb2

log = logging.getLogger(__name__)

_CODE = grpc.StatusCode
_ENDED_WITHIN_S = 590.0  # before the router that waits for the answer gives up


async def fit_of(cluster: ClusterSpec, pools: Pools, hosts: Hosts | None, model_dir: str) -> Fit:
    """Whether all hosts that load it, now or later, have another revision of the model in that
    directory. `hosts`: None where there is only this machine."""
    model, desired = cluster.model, pools.desired
    if hosts is not None:
        may_load = {room.host for room in pools.inventory.rooms if room.gpus or room.seats}
        others = may_load - {*desired.cordoned}
        return await hosts.fit_of(model, model_dir, loads=_loading(desired), others=others)
    its = await read_in_time(model.model_dir, model_dir, with_weights=model.has_weights)
    return fit_everywhere(model_dir, {"": its})


def _loading(desired: Desired) -> set[str]:
    """The hosts that load a rollout's new revision."""
    return {seat.host for seat in desired.seats} - {*desired.cordoned}


class OperatorActs:
    """Of one controller."""

    def __init__(
        self,
        pools: Pools,
        tell: Callable[[Event], None],
        fence: Callable[[str, int], Awaitable[str]],
        scaler: Scaler | None = None,
        settings: LiveScalerSettings | None = None,
        *,
        fit_of: Callable[[str], Awaitable[Fit]],
        read_log: Callable[[acts_pb2.ReadLogRequest], Awaitable[acts_pb2.ReadLogResponse]],
    ) -> None:
        """`fence` kills that epoch of a worker, which is started again, and returns the proof of
        its end, or raises `NotProvenError`; `fit_of`: whether a directory may be another revision;
        `settings`: the scaler's, None where there are none; `read_log` is the launcher's."""
        self._read_log = read_log
        self._pools = pools
        self._fence_worker = fence
        self._tell = tell
        self._scaler = scaler
        self._fit_of = fit_of
        self._settings = settings

    async def do(self, asked: acts_pb2.ControllerAct) -> acts_pb2.ControllerActResult:
        """Never raises but `DeposedError`: what goes wrong is the answer. INTERNAL is our own
        fault, and is logged."""
        result = acts_pb2.ControllerActResult(number=asked.number)
        try:
            if asked.HasField("read_log"):  # a look: nothing is audited
                result.log.CopyFrom(await self._read_log(asked.read_log))
            else:
                result.response.CopyFrom(await self._done(asked))
        except RefusedError as error:
            result.code, result.error = _CODE.FAILED_PRECONDITION.value[0], str(error)
        except InvalidRequestError as error:
            result.code, result.error = _CODE.INVALID_ARGUMENT.value[0], str(error)
        except DeposedError:
            raise
        except Exception as error:  # a bug of ours fails only this act
            log.exception("%s of %s", asked.WhichOneof("what"), asked.who or "somebody")
            result.code = _CODE.INTERNAL.value[0]
            result.error = f"{type(error).__name__}: {error}"
        return result

    async def _done(self, asked: acts_pb2.ControllerAct) -> acts_pb2.ActResponse:
        match asked.WhichOneof("what"):
            case "scale":
                return await self._scale(asked.who, asked.scale)
            case "cordon":
                its = asked.cordon
                return await self._change(
                    asked.who, f"{'un' * its.undo}cordon {its.host}", its.act,
                    lambda desired, view: acts.cordon(
                        desired, self._pools.inventory, its.host, undo=its.undo
                    ),
                )  # fmt: skip
            case "drain_host":
                host = asked.drain_host
                return await self._change(
                    asked.who, f"drain {host.host}", host.act,
                    lambda desired, view: acts.drain_host(
                        desired, self._pools.inventory, view, host.host, hand_over=host.hand_over
                    ),
                )  # fmt: skip
            case "flip":
                flip = asked.flip
                return await self._change(
                    asked.who, f"flip {flip.worker_id}", flip.act,
                    lambda desired, view: _flipped(desired, self._pools.inventory, view, flip),
                )  # fmt: skip
            case "keep_config":
                return await self._keep_config(asked.who, asked.keep_config)
            case "scaler":
                mode = asked.scaler.mode
                return await self._change(
                    asked.who, f"scaler {mode}", asked.scaler.act,
                    lambda desired, view: acts.set_mode(
                        desired, mode, sizes_itself=self._scaler is not None
                    ),
                )  # fmt: skip
            case "start_rollout":
                return await self._start_rollout(asked.who, asked.start_rollout)
            case "step_rollout":
                step = asked.step_rollout
                return await self._change(
                    asked.who, f"rollout {step_in_words(step.step)}", step.act,
                    lambda desired, view: rollout_acts.step(
                        desired, self._pools.inventory, view, step
                    ),
                )  # fmt: skip
            case "kill":
                return await self._kill(asked.who, asked.kill)
        raise RefusedError("this controller does not know that act: it is older than the router")

    async def _scale(self, who: str, request: acts_pb2.ScalePoolsRequest) -> acts_pb2.ActResponse:
        sizes = {its.pool: None if its.auto else its.workers for its in request.pools}
        if not sizes or len(sizes) < len(request.pools):
            raise RefusedError("name each pool once")
        if any(n is not None and not 0 <= n <= MOST_WORKERS for n in sizes.values()):
            raise RefusedError(f"a pool has 0 to {MOST_WORKERS} workers")

        def decide(desired: Desired, view: View) -> Decided:
            if request.expect_revision not in (0, desired.revision):
                raise RefusedError(
                    f"sizes are at revision {desired.revision}, not {request.expect_revision}"
                )
            return acts.scale(desired, self._pools.inventory, view, sizes, request.for_s)

        words = " ".join(f"{name}={'auto' if n is None else n}" for name, n in sizes.items())
        return await self._change(who, f"scale {words}", request.act, decide)

    async def _start_rollout(
        self, who: str, asked: acts_pb2.StartRolloutRequest
    ) -> acts_pb2.ActResponse:
        """Hosts read their disks only for what nothing else refuses."""
        inventory, desired = self._pools.inventory, self._pools.desired
        is_done = desired.answer(asked.act.request_id) is not None
        fit, hosts = None, _loading(desired)
        with contextlib.suppress(RefusedError):  # it is refused, and audited, below
            planned = rollout_acts.without_fit(desired, inventory, self._pools.view(), asked)
            if planned.changes and not is_done:
                fit = await self._fit_of(asked.model_dir)

        def decide(desired: Desired, view: View) -> Decided:
            has_all = hosts >= _loading(desired)  # guard: hosts since then
            its = fit if has_all else None
            return rollout_acts.start(desired, self._pools.inventory, view, asked, its)

        return await self._change(who, f"rollout {asked.model_dir}", asked.act, decide)

    async def _kill(self, who: str, request: acts_pb2.KillWorkerRequest) -> acts_pb2.ActResponse:
        name = request.worker_id
        if request.may_restart:
            return await self._fence(who, request)

        def decide(desired: Desired, view: View) -> Decided:
            decided = acts.kill(desired, self._pools.inventory, view, name)
            _check_epoch(view, name, request.expect_epoch)
            return decided

        response = await self._change(who, f"kill {name}", request.act, decide)
        if not request.act.dry_run:
            try:
                async with asyncio.timeout(_ENDED_WITHIN_S):
                    _prove(response, f"{name} {await self._pools.until_ended(name)}")
            except NotProvenError as error:
                response.not_proven = str(error)
            except TimeoutError:
                late = f"{name} has not ended in {_ENDED_WITHIN_S:g} s; it is still to go"
                response.not_proven = late
        return response

    async def _keep_config(
        self, who: str, request: acts_pb2.KeepConfigRequest
    ) -> acts_pb2.ActResponse:
        """Its `values` are all that operators have set, as far as its router knows: an older one
        knows none of the scaler's. What it does not name stays as it was kept. Those of the scaler
        hold on return."""
        settings = self._settings

        def decide(desired: Desired, view: View) -> Decided:
            values = {**dict(desired.config), **request.values}
            if request.revision <= desired.config_revision:  # guard: configuration
                raise RefusedError(
                    f"the configuration is at revision {desired.config_revision}, not "
                    f"{request.revision - 1}: look again, then try again"
                )
            more = settings.check(desired, self._pools.inventory, values) if settings else []
            config, before = tuple(sorted(values.items())), dict(desired.config)
            changes = [
                Change(subject=name, before=before.get(name, ""), after=value)
                for name, value in sorted({*config} - {*desired.config})
            ]
            return Decided(
                desired=replace(desired, config=config, config_revision=request.revision),
                changes=(*changes, *more),
            )

        new = sorted(request.values.items() - {*self._pools.desired.config})
        what = " ".join(["config", *(name for name, _ in new)])
        response = await self._change(who, what, request.act, decide)
        if settings is not None and not request.act.dry_run:
            config = dict(self._pools.desired.config)  # it is kept by now, whatever comes of it
            self._pools.inventory = settings.hold_kept(self._pools.inventory, config)
        return response

    async def _fence(self, who: str, request: acts_pb2.KillWorkerRequest) -> acts_pb2.ActResponse:
        """It is started again: what is desired stays. Asked for again, it kills the epoch that it
        was to kill at first, if that still runs, and no later one."""
        name, act = request.worker_id, request.act
        epoch = 0

        def decide(desired: Desired, view: View) -> Decided:
            nonlocal epoch
            _check_epoch(view, name, request.expect_epoch)
            decided = acts.kill(desired, self._pools.inventory, view, name)
            change = replace(decided.changes[0], after="is killed, and started again")
            epoch = view.of(name).epoch
            if epoch == 0:  # guard: no process to fence
                raise RefusedError(
                    f"this controller knows of no {name} that runs: nothing is killed, or proven"
                )
            return Decided(desired=desired, changes=(change,), epoch=epoch)

        response = await self._change(who, f"fence {name}", act, decide)
        if act.dry_run:
            return response
        done = self._pools.desired.answer(act.request_id)
        if done is not None and done.proof:  # guard: fenced once
            _prove(response, done.proof)
            return response
        epoch = epoch if done is None else done.epoch
        try:
            if not epoch:  # as an older controller kept it
                raise NotProvenError(f"{name} was not running when it was to be fenced")
            proof = await self._fence_worker(name, epoch)
        except NotProvenError as error:
            response.not_proven = str(error)
        else:
            _prove(response, proof)
            await self._pools.decide(lambda desired, view: desired.proven(act.request_id, proof))
            response.revision = self._pools.desired.revision
        return response

    async def _change(
        self,
        who: str,
        what: str,
        act: acts_pb2.Act,
        decide: Callable[[Desired, View], Decided],
    ) -> acts_pb2.ActResponse:
        """Raises what `decide` raises, and `RefusedError`; then nothing has changed."""
        changes: Sequence[Change] = ()

        def decided(desired: Desired, view: View) -> Desired:
            nonlocal changes
            former = desired.answer(act.request_id)
            if former is not None:  # guard: done before
                changes = former.changes
                return desired
            found = decide(desired, view)
            changes = found.changes
            if act.dry_run:  # guard: dry run
                return desired
            is_size = not what.startswith(("scaler ", "config"))
            if self._scaler is not None and changes and is_size:
                name = changes[0].subject
                self._scaler.touched(asyncio.get_running_loop().time(), name)
            return found.desired.answered(act.request_id, changes, found.epoch)

        try:
            desired = await self._pools.change(decided)
        except (RefusedError, InvalidRequestError) as error:
            self._audit(who, what, act, f"refused: {error}")
            raise
        words = "; ".join(f"{its.subject}: {its.before or '-'} -> {its.after}" for its in changes)
        verb, *subjects = what.split()
        if any(its.subject in subjects for its in changes):  # they name them
            what = verb
        self._audit(who, what, act, f"{'would do: ' * act.dry_run}{words or 'no change'}")
        return acts_pb2.ActResponse(
            changes=[
                acts_pb2.Change(
                    subject=its.subject, before=its.before, after=its.after, stays=its.stays
                )
                for its in changes
            ],
            dry_run=act.dry_run,
            revision=desired.revision,
        )

    def _audit(self, who: str, what: str, act: acts_pb2.Act, outcome: str) -> None:
        reason = f" ({act.reason})" if act.reason else ""
        text = f"{who or 'somebody'}: {what}{reason}: {outcome}"
        self._tell(Event(kind=Kind.OPERATOR, name="", text=text))


def _flipped(
    desired: Desired, inventory: Inventory, view: View, asked: acts_pb2.FlipWorkerRequest
) -> Decided:
    decided = acts.flip(desired, inventory, view, asked.worker_id)
    _check_epoch(view, asked.worker_id, asked.expect_epoch)
    return decided


def _prove(response: acts_pb2.ActResponse, proof: str) -> None:
    """`proof` ends like `(proof of class A)`."""
    response.proof = proof
    found = re.search(r"\(proof of class ([ABC])\)$", proof)
    response.proof_class = found[1] if found else ""


def _check_epoch(view: View, name: str, expected: int) -> None:
    """Raises `RefusedError` if the worker is another incarnation; 0: any."""
    epoch = view.of(name).epoch
    if expected not in (0, epoch):
        raise RefusedError(
            f"{name} was started again: its epoch is {epoch:016x}, not {expected:016x}"
        )
