"""Asks hosts whether they can load another revision of the model: all of them before a rollout
begins, and each again before a worker of that revision starts there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, TypeVar

import grpc

from twolane.deploy.agent.host_link import HostLink, HostState
from twolane.deploy.errors import StartError
from twolane.deploy.spec.revision import SHOWN, Fit, Revision, fit_everywhere
from twolane.deploy.spec.specs import ModelSpec, ProcessSpec, WorkerSpec
from twolane.v1 import agent_pb2

AnswerT = TypeVar("AnswerT")
_POLL_S = 0.5


async def fit_on_hosts(
    links: Mapping[str, HostLink],
    model: ModelSpec,
    model_dir: str,
    *,
    loads: Collection[str],
    others: Collection[str],
) -> Fit:
    """See `twolane.deploy.launch.launcher.Hosts.fit_of`. The agent of a former version does not
    know the question: its host is one that was not checked, even one of `loads`."""
    request = agent_pb2.ReadRevisionRequest(
        model_dir=str(model.model_dir),
        revision_dir=model_dir,
        without_weights=not model.has_weights,
    )
    names = sorted({*loads, *others})
    answers = await asyncio.gather(
        *(_read(links[name], request, is_needed=name in loads) for name in names)
    )
    found = {name: its for name, its in zip(names, answers, strict=True) if its is not None}
    return fit_everywhere(model_dir, found, {*names} - found.keys())


async def check_revision(spec: ProcessSpec, link: HostLink) -> None:
    """Raises `StartError` if that host cannot load the revision that the worker is to load: it may
    have come since the others were asked, or its files have changed."""
    if not isinstance(spec, WorkerSpec) or not spec.fingerprint:
        return
    host, model_dir = link.host.name, str(spec.model.model_dir)
    # The revision alone: the configured one need not be there any more.
    fit = await fit_on_hosts({host: link}, spec.model, model_dir, loads={host}, others=())
    why_not = fit.why_not
    if fit.fingerprint and fit.fingerprint != spec.fingerprint:  # guard: other files
        why_not = (
            f"{host}: it has other files in {model_dir} than the hosts had when the rollout "
            f"began: {fit.fingerprint[:SHOWN]}, not {spec.fingerprint[:SHOWN]}"
        )
    if why_not:  # guard: hosts that have come since
        raise StartError(f"it cannot start on {why_not}")


async def _read(
    link: HostLink, request: agent_pb2.ReadRevisionRequest, *, is_needed: bool
) -> Revision | None:
    """None: it cannot be asked, or need not answer and does not."""
    if link.state is not HostState.UP:
        unknown = f"it is {link.state}: nobody knows whether it has {request.revision_dir}"
        return Revision(why_not=unknown) if is_needed else None
    try:
        async with link.client() as client:
            its = await _while_up(link, client.read_revision(request))
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return None
        if not is_needed:
            return None
        why = error.details() or error.code().name
        return Revision(why_not=f"it does not say whether it has {request.revision_dir}: {why}")
    if its is None:
        return await _read(link, request, is_needed=is_needed)  # it says why
    return Revision(why_not=its.why_not, fingerprint=its.fingerprint)


async def _while_up(link: HostLink, answer: Coroutine[Any, Any, AnswerT]) -> AnswerT | None:
    """The answer; None: the host is not heard any more. It may take minutes to read its disk."""
    asking = asyncio.create_task(answer)
    try:
        while not asking.done() and link.state is HostState.UP:
            await asyncio.wait({asking}, timeout=_POLL_S)
        return asking.result() if asking.done() else None
    finally:
        asking.cancel()
