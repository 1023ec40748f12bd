"""Who may call what: every method of every listener, and every HTTP path, by the caller's role.

Nothing here reads the tables of `twolane.security.access`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from google.protobuf.descriptor_pool import Default
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

import twolane.v1
from tests.deploy.walked import CONSOLE_API, CONSOLE_PAGE

IN = "INVALID_ARGUMENT"  # the gate is passed, and the message that is sent is malformed
OURS = tuple(
    importlib.import_module(f"{twolane.v1.__name__}.{module.name}")
    for module in pkgutil.iter_modules(twolane.v1.__path__)
    if module.name.endswith("_pb2")
)
WITH_GRPC = (health_pb2, reflection_pb2)
PORT = "operators' port"
EVERY_ROLE = "router worker agent controller operator viewer client"

# Method: the roles that may call it beyond the loopback; `nobody` is a caller without a certificate
# where callers may come without one.
HEALTH = {
    "grpc.health.v1.Health/Check": EVERY_ROLE,
    "grpc.health.v1.Health/List": EVERY_ROLE,
    "grpc.health.v1.Health/Watch": EVERY_ROLE,
}
REFLECTION = {"grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "operator"}
LOOKS = (
    "GetClusterStatus",
    "ListRequests",
    "GetRequest",
    "GetPages",
    "ListEvents",
    "WatchEvents",
    "WatchDrain",
    "GetConfig",
    "Diagnose",
    "OpenConsole",
)
ACTS = (
    "ReadLog",
    "CancelRequest",
    "DrainWorker",
    "CheckCluster",
    "KillWorker",
    "CordonHost",
    "DrainHost",
    "ScalePools",
    *("FlipWorker", "SetScaler", "StartRollout", "StepRollout"),
    "SetConfig",
    "ReloadConfig",
)
KEDA = ("IsActive", "StreamIsActive", "GetMetricSpec", "GetMetrics", "StreamMetricSpec")
LISTENERS: Mapping[str, Mapping[str, str]] = {
    "clients": {
        "twolane.v1.InferenceService/Generate": "client",
        "twolane.v1.InferenceService/Resume": "client",
        "twolane.v1.InferenceService/Multiplex": "client",
        "twolane.v1.InferenceService/Cancel": "client",
        "twolane.v1.InferenceService/ListModels": "client",
        "twolane.v1.InferenceService/GetStatus": "client",
        "twolane.v1.InferenceService/WhoAmI": EVERY_ROLE,
        **HEALTH,
        **REFLECTION,
    },
    "workers": {
        "twolane.v1.MembershipService/Announce": "worker",
        "twolane.v1.MembershipService/ReportGone": "agent controller",
        "twolane.v1.MembershipService/Supervise": "controller",
        "twolane.v1.PeerService/GetClusterStatus": "router",
        "twolane.v1.PeerService/DrainWorker": "router controller",
        "twolane.v1.PeerService/Cancel": "router",
        "twolane.v1.PeerService/FindSubmissions": "router",
        "twolane.v1.PeerService/Look": "router",
        "twolane.v1.PeerService/PrepareConfig": "router",
        "twolane.v1.PeerService/ApplyConfig": "router",
    },
    "operators": {  # a socket that is its user's alone: whoever reaches it is an operator
        **{f"twolane.v1.AdminService/{name}": "" for name in (*LOOKS, *ACTS)},
        **dict.fromkeys((*HEALTH, *REFLECTION), ""),
    },
    PORT: {
        **{f"twolane.v1.AdminService/{look}": "operator viewer" for look in LOOKS},
        **{f"twolane.v1.AdminService/{act}": "operator" for act in ACTS},
        **HEALTH,
        **REFLECTION,
    },
    "controller": {  # as the operators' socket
        "twolane.v1.ControllerService/FenceWorker": "",
        "twolane.v1.ControllerService/SayHostOff": "",
        "twolane.v1.ControllerService/StopCluster": "",
    },
    "agent": {
        "twolane.v1.AgentService/Describe": "controller operator viewer",
        "twolane.v1.AgentService/Start": "controller",
        "twolane.v1.AgentService/Stop": "controller",
        "twolane.v1.AgentService/Fence": "controller operator",
        "twolane.v1.AgentService/Watch": "controller",
        "twolane.v1.AgentService/KeepDesired": "controller",
        "twolane.v1.AgentService/ReadHostLog": "controller operator",
        "twolane.v1.AgentService/ReadRevision": "controller",
    },
    "keda": {f"externalscaler.ExternalScaler/{name}": "operator viewer" for name in KEDA},
    "worker": {
        "twolane.v1.WorkerService/Session": "router",
        "twolane.v1.WorkerService/Inspect": "router operator viewer",
        "twolane.v1.WorkerService/AnswerAlone": "router",
        "twolane.v1.TransferService/Connect": "worker",
        **HEALTH,
        **REFLECTION,
    },
}
# Method: callers on this machine that may call it, with the cluster's secret or without anything.
ANYBODY = frozenset({"nobody", "secret", "wrong secret"})
PROCESSES = frozenset({"secret"})
ON_LOOPBACK = {
    **dict.fromkeys(LISTENERS["worker"], PROCESSES),
    **dict.fromkeys((*HEALTH, *REFLECTION), ANYBODY),
    **dict.fromkeys(LISTENERS["clients"], ANYBODY),
    **dict.fromkeys(LISTENERS["workers"], PROCESSES),
    **dict.fromkeys(LISTENERS["operators"], ANYBODY),
    **dict.fromkeys(LISTENERS["agent"], PROCESSES),
    **dict.fromkeys((*LISTENERS["controller"], *LISTENERS["keda"]), ANYBODY),
}
HTTP = {  # path: roles, `nobody` is a caller without a certificate
    "/health": f"nobody {EVERY_ROLE}",
    "/v1/models": "client",
    "/v1/models/{name:path}": "client",
    "/v1/completions": "client",
    "/v1/chat/completions": "client",
    "/nowhere": "client",
    **dict.fromkeys(CONSOLE_PAGE, f"nobody {EVERY_ROLE}"),
    **CONSOLE_API,
}
METRICS = {"/metrics": "operator viewer"}  # of a worker; a router's:
PAGES = METRICS | {"/targets": "operator viewer"}


def all_methods() -> Iterator[str]:
    """Of every service of ours, and of those that come with gRPC."""
    for module in (*OURS, *WITH_GRPC):
        for name in module.DESCRIPTOR.services_by_name:
            service = Default().FindServiceByName(f"{module.DESCRIPTOR.package}.{name}")
            for method in service.methods:
                yield f"{service.full_name}/{method.name}"
