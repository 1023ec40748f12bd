"""The schema of the chart's values: what a topology takes is the topology's own schema."""

from __future__ import annotations

import json
from typing import Any

from twolane.deploy.spec.topology import (
    Pool,
    RouterOptions,
    ScalerOptions,
    TimingOptions,
    WorkerOptions,
)

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", "maxLength": 40}
YES_OR_NO: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9.]+([kKMGTPE]i?|m)?$"}
OBJECTS: Schema = {"type": "array", "items": {"type": "object"}}  # of Kubernetes
ANY_OBJECT: Schema = {"type": "object"}

# The chart sets these itself.
_OWN_OF_ROUTERS = frozenset(
    {"host", "port", "http_port", "no_http", "worker_port", "metrics_port", "admin_port"}
    | {"processes", "keys", "store", "store_cluster"}
)
_OWN_OF_WORKERS = frozenset({"worker_metrics_port", "worker_metrics_ports"})
_OWN_OF_SCALERS = frozenset({"autoscale"})
_OWN_OF_TIMING = frozenset({"stop_grace_s"})


def page() -> str:
    return json.dumps(schema(), indent=2) + "\n"


def schema() -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_object(
            mode=_one_of("plain", "kuberay"),
            image=_object(router=_image(), worker=_image()),
            imagePullSecrets={"type": "array", "items": TEXT},
            model=_object(path=_filled(), claim=TEXT, mountPath=_filled()),
            pools={"type": "array", "minItems": 1, "items": _options(Pool, _OWN_OF_WORKERS)},
            workers=_options(WorkerOptions, _OWN_OF_WORKERS),
            timing=_options(TimingOptions, _OWN_OF_TIMING),
            scaler=_options(ScalerOptions, _OWN_OF_SCALERS),
            hostSets={"type": "array", "minItems": 1, "items": _host_set()},
            drainSeconds=_whole(1),
            terminationGracePeriodSeconds=_whole(12),
            router=_object(
                replicas=_whole(1),
                options=_options(RouterOptions, _OWN_OF_ROUTERS),
                **_placement("affinity", "annotations", "tolerations", "nodeSelector"),
                resources=_resources(),
                apiKeysSecret=TEXT,
                store=TEXT,
                service=_object(
                    type=_one_of("ClusterIP", "LoadBalancer", "NodePort"), annotations=TEXTS
                ),
            ),
            controller=_object(
                resources=_resources(), **_placement("nodeSelector", "tolerations", "annotations")
            ),
            executor=_one_of("none", "kubernetes", "keda", "ray"),
            keda=_object(zeroTolerance=YES_OR_NO),
            tls=_object(
                mode=_one_of("secret", "certManager", "none"),
                secretName=_filled(),
                viewerSecret=TEXT,
                issuer=_object(name=TEXT, kind=_one_of("Issuer", "ClusterIssuer")),
            ),
            clusterSecret=_filled(),
            networkPolicy=_object(
                enabled=YES_OR_NO,
                clients=OBJECTS,
                operators=OBJECTS,
                prometheus=OBJECTS,
                keda=OBJECTS,
                egress=OBJECTS,
                kubernetesApi={"type": "array", "minItems": 1, "items": _whole(1, 65535)},
            ),
            monitoring=_object(
                targets=_one_of("none", "scrapeConfig", "podMonitor"),
                rules=YES_OR_NO,
                dashboard=YES_OR_NO,
                labels=TEXTS,
                docs={"type": "string", "pattern": "^https?://[^/]+"},
            ),
            ray=_object(
                version=_filled(),
                idleTimeoutSeconds=_whole(1),
                redisAddress=TEXT,
                redisPasswordSecret=TEXT,
                head=_object(
                    router=YES_OR_NO,
                    resources=_resources(),
                    **_placement("nodeSelector", "tolerations"),
                ),
            ),
            podSecurity=_object(runAsUser=_whole(1), runAsGroup=_whole(1), fsGroup=_whole(1)),
            clusterDomain=_filled(),
            stateSize=QUANTITY,
            cacheSize=QUANTITY,
        ),
        "allOf": [
            _if("mode", "plain", {"executor": {"enum": ["none", "kubernetes", "keda"]}}),
            _if("mode", "kuberay", {"executor": {"enum": ["none", "ray"]}}),
        ],
    }


def _object(**properties: Schema) -> Schema:
    """All of them must be there: values.yaml has them all."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [*properties],
        "properties": properties,
    }


def _one_of(*texts: str) -> Schema:
    return {"enum": [*texts]}


def _filled() -> Schema:
    return {"type": "string", "minLength": 1}


def _whole(least: int, most: int | None = None) -> Schema:
    found: Schema = {"type": "integer", "minimum": least}
    return found if most is None else {**found, "maximum": most}


def _image() -> Schema:
    policy = _one_of("Always", "IfNotPresent", "Never")
    return _object(repository=_filled(), tag=TEXT, pullPolicy=policy)


def _resources() -> Schema:
    """Memory is always limited: what a pod takes beyond its share, others lack."""
    amounts: Schema = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
    limits = {**amounts, "required": ["memory"]}
    return _object(requests={**amounts, "required": ["cpu", "memory"]}, limits=limits)


def _placement(*names: str) -> dict[str, Schema]:
    kinds = {"nodeSelector": TEXTS, "annotations": TEXTS, "tolerations": OBJECTS}
    return {name: kinds.get(name, ANY_OBJECT) for name in names}


def _host_set() -> Schema:
    found = _object(
        name=NAME,
        pools={"type": "array", "minItems": 1, "items": TEXT},
        replicas=_whole(0),
        most=_whole(1, 1000),
        gpus=_whole(0),
        seats=_whole(1),
        resources=_resources(),
        runtimeClassName=TEXT,
        **_placement("nodeSelector", "tolerations", "affinity", "annotations"),
    )
    optional = {"nodeSelector", "tolerations", "affinity", "annotations", "runtimeClassName"}
    return {**found, "required": [name for name in found["required"] if name not in optional]}


def _options(part: Any, own: frozenset[str] = frozenset()) -> Schema:
    """Of a part of a topology."""
    found: Schema = part.model_json_schema()
    assert "$defs" not in found
    kept = {
        name: {key: value for key, value in its.items() if key not in ("title", "default")}
        for name, its in found["properties"].items()
        if name not in own
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "required": found.get("required", []),
        "properties": kept,
    }


def _if(name: str, value: str, then: dict[str, Schema]) -> Schema:
    return {
        "if": {"properties": {name: {"const": value}}},
        "then": {"properties": then},
    }
