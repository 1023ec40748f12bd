"""What `kubectl` asks for besides: which kinds the server has, and the objects themselves."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.deploy.kubernetes.fake_api import NAMESPACE, FakeApi, status

_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def _kind(name: str, kind: str, *verbs: str, **more: str) -> dict[str, Any]:
    return {
        "name": name,
        "singularName": "",
        "namespaced": True,
        "kind": kind,
        "verbs": verbs,
    } | more


_ANSWERS: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [
            {
                "name": "apps",
                "versions": [{"groupVersion": "apps/v1", "version": "v1"}],
                "preferredVersion": {"groupVersion": "apps/v1", "version": "v1"},
            }
        ],
    },
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [_kind("pods", "Pod", "get", "list", "watch", "delete")],
    },
    "/apis/apps/v1": {
        "kind": "APIResourceList",
        "groupVersion": "apps/v1",
        "resources": [
            _kind("statefulsets", "StatefulSet", "get", "list"),
            _kind("statefulsets/scale", "Scale", "get", "patch", group="autoscaling", version="v1"),
        ],
    },
}


def routes(api: FakeApi) -> list[Route]:
    async def answer(request: Request) -> Response:
        return JSONResponse(_ANSWERS[request.url.path])

    async def get_set(request: Request) -> Response:
        its = api.sets.get(name := request.path_params["name"])
        if its is None:
            return status(404, "NotFound")
        return JSONResponse(
            {
                "kind": "StatefulSet",
                "apiVersion": "apps/v1",
                "metadata": {
                    "name": name,
                    "namespace": NAMESPACE,
                    "resourceVersion": its["version"],
                },
                "spec": {"replicas": its["replicas"]},
            }
        )

    async def pod(request: Request) -> Response:
        if (name := request.path_params["name"]) not in api.pods:
            return status(404, "NotFound")
        if request.method == "DELETE":
            api.delete_pod(name)
        return JSONResponse({"kind": "Pod", "apiVersion": "v1", **api.pods[name]})

    return [
        *(Route(path, answer) for path in _ANSWERS),
        Route(_SETS + "/{name}", get_set),
        Route(_PODS + "/{name}", pod, methods=["GET", "DELETE"]),
    ]
