"""Who may call which method, at every listener of ours. A method that is not here is refused.

                                          without credentials on this machine
GRPC_OPEN        Health/Check             yes, and from anywhere
GRPC_LOCAL       reflection, Health/List  yes
GRPC_ROLES       all of them              no, except as the listener's own caller (`Gate`)
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
    """Processes of the cluster: also those on this machine that show its secret."""
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
                "DrainWorker": _inner(Role.ROUTER),
                "Cancel": _inner(Role.ROUTER),
                "FindSubmissions": _inner(Role.ROUTER),
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
                "Inspect": _inner(*_VIEWERS),
            },
        ),
        **_each("twolane.v1.TransferService", {"Connect": _inner(Role.WORKER)}),
        **_each(
            "twolane.v1.AdminService",
            {
                "GetClusterStatus": _inner(*_VIEWERS),
                "DrainWorker": _inner(*_OPERATORS),
                "WatchDrain": _inner(*_VIEWERS),
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
HTTP_OPEN = frozenset({"/health"})  # all other paths of the clients' HTTP door, known or not:
HTTP_ROLES = _CLIENTS
METRICS_ROLES = _VIEWERS  # all pages beside the metrics
