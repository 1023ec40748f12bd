"""What the API server says of a pod, as far as it matters here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """`is_leaving`: it is being deleted, and no container of it starts again. `has_ended`: it is
    leaving, and its kubelet has reported of every container that it has terminated."""

    name: str
    uid: str
    ip: str
    node: str
    is_leaving: bool
    has_ended: bool


def pod_of(value: Mapping[str, Any]) -> Pod:
    metadata, status = value["metadata"], value.get("status", {})
    is_leaving = "deletionTimestamp" in metadata
    containers = len(value.get("spec", {}).get("containers", ()))
    statuses = status.get("containerStatuses", ())
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        ip=status.get("podIP", ""),
        node=value.get("spec", {}).get("nodeName", ""),
        is_leaving=is_leaving,
        # not the pod's phase: others than the kubelet write it for pods of lost nodes
        has_ended=is_leaving
        and len(statuses) >= max(1, containers)
        and all(_has_terminated(its) for its in statuses),
    )


def _has_terminated(status: Mapping[str, Any]) -> bool:
    return bool(status.get("state", {}).get("terminated", {}).get("containerID"))
