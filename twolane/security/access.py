"""Which roles may call which method, for every listener. A method that is not listed is refused.

                                          without credentials on this machine
GRPC_OPEN        Health/Check             yes, and from anywhere
GRPC_LOCAL       reflection, Health/List  yes
GRPC_ROLES       all of them              no, except as the listener's `anonymous` (`Gate`)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from twolane.security.identity import Role

_OPERATORS = frozenset({Role.OPERATOR})
_VIEWERS = frozenset({Role.OPERATOR, Role.VIEWER})
_CLIENTS = frozenset({Role.CLIENT})
_ANYBODY = frozenset(Role)


def _inner(*roles: Role) -> frozenset[Role]:
    """These roles, and processes on this machine that present the cluster's secret."""
    return frozenset({*roles, Role.LOCAL})


def _each(service: str, methods: Mapping[str, Iterable[Role]]) -> dict[str, frozenset[Role]]:
    return {f"/{service}/{method}": frozenset(roles) for method, roles in methods.items()}


GRPC_ROLES: Mapping[str, frozenset[Role]] = MappingProxyType(
    {
        **_each(
            "twolane.v1.InferenceService",
            {
                "Generate": _CLIENTS,
                "Multiplex": _CLIENTS,
                "Resume": _CLIENTS,
                "Cancel": _CLIENTS,
                "ListModels": _CLIENTS,
                "GetStatus": _CLIENTS,
                "WhoAmI": _ANYBODY,
            },
        ),
        **_each(
            "twolane.v1.MembershipService",
            {
                "Announce": _inner(Role.WORKER),
                "ReportGone": _inner(Role.AGENT, Role.CONTROLLER),
                "Supervise": _inner(Role.CONTROLLER),
            },
        ),
        **_each(
            "twolane.v1.PeerService",
            {
                "GetClusterStatus": _inner(Role.ROUTER),
                "DrainWorker": _inner(Role.ROUTER, Role.CONTROLLER),
                "Cancel": _inner(Role.ROUTER),
                "FindSubmissions": _inner(Role.ROUTER),
                "Look": _inner(Role.ROUTER),
                "PrepareConfig": _inner(Role.ROUTER),
                "ApplyConfig": _inner(Role.ROUTER),
            },
        ),
        **_each(
            "twolane.v1.AgentService",
            {
                "Describe": _inner(Role.CONTROLLER, *_VIEWERS),
                "Start": _inner(Role.CONTROLLER),
                "Stop": _inner(Role.CONTROLLER),
                "Fence": _inner(Role.CONTROLLER, *_OPERATORS),
                "Watch": _inner(Role.CONTROLLER),
                "KeepDesired": _inner(Role.CONTROLLER),
                "ReadHostLog": _inner(Role.CONTROLLER, *_OPERATORS),
                "ReadRevision": _inner(Role.CONTROLLER),
            },
        ),
        **_each(
            "twolane.v1.ControllerService",
            {
                "FenceWorker": _inner(*_OPERATORS),
                "SayHostOff": _inner(*_OPERATORS),
                "StopCluster": _inner(*_OPERATORS),
            },
        ),
        **_each(
            "twolane.v1.WorkerService",
            {
                "Session": _inner(Role.ROUTER),
                "Inspect": _inner(Role.ROUTER, *_VIEWERS),
                "AnswerAlone": _inner(Role.ROUTER),
            },
        ),
        **_each("twolane.v1.TransferService", {"Connect": _inner(Role.WORKER)}),
        **_each(
            "twolane.v1.AdminService",
            {
                "GetClusterStatus": _inner(*_VIEWERS),
                "ListRequests": _inner(*_VIEWERS),
                "GetRequest": _inner(*_VIEWERS),
                "GetPages": _inner(*_VIEWERS),
                "ListEvents": _inner(*_VIEWERS),
                "WatchEvents": _inner(*_VIEWERS),
                "ReadLog": _inner(*_OPERATORS),
                "WatchDrain": _inner(*_VIEWERS),
                "GetConfig": _inner(*_VIEWERS),
                "Diagnose": _inner(*_VIEWERS),
                "OpenConsole": _inner(*_VIEWERS),
                "CancelRequest": _inner(*_OPERATORS),
                "DrainWorker": _inner(*_OPERATORS),
                "CheckCluster": _inner(*_OPERATORS),
                "KillWorker": _inner(*_OPERATORS),
                "CordonHost": _inner(*_OPERATORS),
                "DrainHost": _inner(*_OPERATORS),
                "ScalePools": _inner(*_OPERATORS),
                "FlipWorker": _inner(*_OPERATORS),
                "SetScaler": _inner(*_OPERATORS),
                "StartRollout": _inner(*_OPERATORS),
                "StepRollout": _inner(*_OPERATORS),
                "SetConfig": _inner(*_OPERATORS),
                "ReloadConfig": _inner(*_OPERATORS),
            },
        ),
        **_each(
            "externalscaler.ExternalScaler",
            {
                "IsActive": _VIEWERS,
                "StreamIsActive": _VIEWERS,
                "GetMetricSpec": _VIEWERS,
                "GetMetrics": _VIEWERS,
                "StreamMetricSpec": _VIEWERS,
            },
        ),
        **_each("grpc.health.v1.Health", {"Check": _ANYBODY, "List": _ANYBODY, "Watch": _ANYBODY}),
        **_each("grpc.reflection.v1alpha.ServerReflection", {"ServerReflectionInfo": _OPERATORS}),
    }
)
GRPC_OPEN = frozenset({"/grpc.health.v1.Health/Check"})
GRPC_LOCAL = frozenset(
    {
        "/grpc.health.v1.Health/List",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    }
)
# The console's page has no data: that is what it asks for.
_PAGE = ("", "/console.css", "/console.js", "/chat.js", "/dom.js", "/scaler.js")
HTTP_OPEN = frozenset({"/health", *(f"/console{name}" for name in _PAGE)})
HTTP_ROLES = _CLIENTS  # for all other paths of the clients' HTTP door, whether they exist or not
CONSOLE = "/console/"  # but these paths there, which have a gate of their own
CONSOLE_ROLES = _VIEWERS
CONSOLE_ACTS = frozenset({"/console/api/chat"})  # for operators
CONSOLE_ACT_ROLES = _OPERATORS
METRICS_ROLES = _VIEWERS  # for the metrics and all other pages of their endpoint
