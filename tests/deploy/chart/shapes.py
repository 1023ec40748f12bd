"""The fields of custom resources that the chart may use, so that a misspelt one is noticed: their
own validators let unknown fields pass, which the API server then drops.

A shape is the set of a object's fields: with None for a value of any kind, with a shape for an
object, with a list of one shape for a list of objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Shape = dict[str, Any]

_KEY: Shape = {"name": None, "key": None}
_SCRAPE_TLS: Shape = {
    "ca": {"secret": _KEY},
    "cert": {"secret": _KEY},
    "keySecret": _KEY,
    "insecureSkipVerify": None,
}
_RELABEL: list[Shape] = [{"targetLabel": None, "replacement": None}]
_SCALING: Shape = {
    "stabilizationWindowSeconds": None,
    "tolerance": None,
    "policies": [{"type": None, "value": None, "periodSeconds": None}],
}
_GROUP: Shape = {"rayStartParams": None, "template": None}
_ISSUER: Shape = {"name": None, "kind": None, "group": None}

SPECS: dict[str, Shape] = {
    "ScaledObject": {
        "scaleTargetRef": {"apiVersion": None, "kind": None, "name": None},
        "pollingInterval": None,
        "cooldownPeriod": None,
        "minReplicaCount": None,
        "maxReplicaCount": None,
        "advanced": {
            "horizontalPodAutoscalerConfig": {
                "behavior": {"scaleUp": _SCALING, "scaleDown": _SCALING}
            }
        },
        "triggers": [
            {
                "type": None,
                "metricType": None,
                "metadata": None,
                "authenticationRef": {"name": None},
            }
        ],
    },
    "TriggerAuthentication": {"secretTargetRef": [{"parameter": None, "name": None, "key": None}]},
    "Issuer": {"selfSigned": {}, "ca": {"secretName": None}},
    "Certificate": {
        "isCA": None,
        "commonName": None,
        "secretName": None,
        "uris": None,
        "dnsNames": None,
        "duration": None,
        "renewBefore": None,
        "usages": None,
        "privateKey": {"algorithm": None, "size": None, "encoding": None, "rotationPolicy": None},
        "issuerRef": _ISSUER,
    },
    "PodMonitor": {
        "selector": {"matchLabels": None},
        "podMetricsEndpoints": [
            {"port": None, "scheme": None, "tlsConfig": _SCRAPE_TLS, "relabelings": _RELABEL}
        ],
    },
    "ScrapeConfig": {
        "jobName": None,
        "scheme": None,
        "tlsConfig": _SCRAPE_TLS,
        "httpSDConfigs": [{"url": None, "refreshInterval": None, "tlsConfig": _SCRAPE_TLS}],
        "relabelings": _RELABEL,
    },
    "PrometheusRule": {
        "groups": [
            {
                "name": None,
                "rules": [
                    {"alert": None, "expr": None, "for": None, "labels": None, "annotations": None}
                ],
            }
        ]
    },
    "RayCluster": {
        "rayVersion": None,
        "enableInTreeAutoscaling": None,
        "autoscalerOptions": {
            "version": None,
            "idleTimeoutSeconds": None,
            "resources": None,
            "securityContext": None,
        },
        "authOptions": {"mode": None},
        "gcsFaultToleranceOptions": {
            "redisAddress": None,
            "redisPassword": {"valueFrom": {"secretKeyRef": _KEY}},
        },
        "headGroupSpec": _GROUP,
        "workerGroupSpecs": [
            {
                **_GROUP,
                "groupName": None,
                "replicas": None,
                "minReplicas": None,
                "maxReplicas": None,
            }
        ],
    },
}


def strangers(value: Any, shape: Any, place: str = "spec") -> Iterator[str]:
    """Every field that its shape does not have."""
    if shape is None:
        return
    if isinstance(shape, list):
        for i, each in enumerate(value):
            yield from strangers(each, shape[0], f"{place}[{i}]")
        return
    for name, part in value.items():
        if name in shape:
            yield from strangers(part, shape[name], f"{place}.{name}")
        else:
            yield f"{place}.{name}"
