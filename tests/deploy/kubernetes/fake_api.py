"""An API server of Kubernetes with StatefulSets and their pods, as far as a controller sees it, and
a little of the StatefulSet controller and of kubelets. Also what may go wrong there.

A pod runs a real agent in the test's own process if `agents` makes one.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

NAMESPACE = "t"
_SCALE = "/apis/apps/v1/namespaces/t/statefulsets/{name}/scale"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/t/leases"
_PODS = "/api/v1/namespaces/t/pods"


class PodAgent(Protocol):
    """What runs in a pod."""

    ip: str

    async def stop(self) -> None:
        """What SIGTERM does. Returns when it has ended."""
        ...


MakeAgent = Callable[[str, str], Awaitable[PodAgent]]  # the pod's name and UID
MakeRoutes = Callable[["FakeApi"], list[Route]]


class FakeApi:
    """`more`: further routes. `busy`: so many of the next calls are answered 429. `on_scale`:
    called before a size is written, as others write it, too. `patches`: what was asked for, in
    order."""

    def __init__(self, agents: MakeAgent | None = None, more: MakeRoutes | None = None) -> None:
        self._more = more
        self.sets: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.nodes: dict[str, list[str]] = {}  # keys of taints
        self.patches: list[tuple[str, Any]] = []
        self.busy = 0
        self.on_scale: Callable[[str], None] = lambda name: None
        self.leases: dict[str, dict[str, Any]] = {}
        self.n_lists = 0
        self.n_watches = 0
        self._agents: dict[str, PodAgent] = {}
        self._make_agent = agents
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self._events: list[tuple[int, str, dict[str, Any]]] = []
        self._changed = asyncio.Event()
        self._watch_breaks = asyncio.Event()
        self._expired = 0  # watches from versions up to here are answered 410
        self._ending: set[asyncio.Task[None]] = set()
        self.url = ""

    # The server

    async def __aenter__(self) -> FakeApi:
        app = Starlette(
            routes=[
                Route(_SCALE, self._scale, methods=["GET", "PATCH"]),
                Route(_PODS, self._list_pods),
                Route("/api/v1/nodes/{name}", self._node),
                Route(LEASES, self._create_lease, methods=["POST"]),
                Route(LEASES + "/{name}", self._lease, methods=["GET", "PATCH"]),
                *(self._more(self) if self._more is not None else ()),
            ]
        )
        config = uvicorn.Config(app, port=0, log_level="error", lifespan="off")
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve())
        while not self._server.started:
            await asyncio.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.break_watches()
        self._server.should_exit = True
        await self._serving
        for task in list(self._ending):
            await task
        for agent in self._agents.values():
            await agent.stop()

    async def _scale(self, request: Request) -> Response:
        if (refusal := self._refusal()) is not None:
            return refusal
        name = request.path_params["name"]
        if name not in self.sets:
            return status(404, "NotFound")
        its = self.sets[name]
        if request.method == "PATCH":
            body = json.loads(await request.body())
            self.on_scale(name)
            version = body.get("metadata", {}).get("resourceVersion")
            if version not in (None, its["version"]):
                return status(409, "Conflict")
            self.patches.append((name, body["spec"]["replicas"]))
            await self.set_replicas(name, body["spec"]["replicas"])
        return JSONResponse(
            {
                "kind": "Scale",
                "apiVersion": "autoscaling/v1",
                "metadata": {"name": name, "resourceVersion": its["version"]},
                "spec": {"replicas": its["replicas"]},
            }
        )

    async def _list_pods(self, request: Request) -> Response:
        if (refusal := self._refusal()) is not None:
            return refusal
        chosen = request.query_params.get("labelSelector", "")
        version = self._events[-1][0] if self._events else 0
        if "watch" in request.query_params:
            since = int(request.query_params["resourceVersion"])
            if since < self._expired:
                return status(410, "Expired")
            self.n_watches += 1
            events = self._watch(since, self._watch_breaks, chosen)
            return StreamingResponse(events, media_type="application/json")
        self.n_lists += 1
        items = [copy.deepcopy(pod) for pod in self.pods.values() if _has(pod, chosen)]
        kind = {"kind": "PodList", "apiVersion": "v1"}
        return JSONResponse(kind | {"metadata": {"resourceVersion": str(version)}, "items": items})

    async def _watch(self, since: int, breaks: asyncio.Event, chosen: str) -> AsyncIterator[str]:
        while not breaks.is_set():
            changed = self._changed
            for version, kind, pod in [each for each in self._events if each[0] > since]:
                since = version
                if _has(pod, chosen):
                    yield json.dumps({"type": kind, "object": pod}) + "\n"
            waits = [asyncio.create_task(event.wait()) for event in (changed, breaks)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def _node(self, request: Request) -> Response:
        taints = self.nodes.get(request.path_params["name"])
        if taints is None:
            return status(404, "NotFound")
        return JSONResponse({"spec": {"taints": [{"key": key} for key in taints]}})

    async def _create_lease(self, request: Request) -> Response:
        if (refusal := self._refusal()) is not None:
            return refusal
        lease = json.loads(await request.body())
        name = lease["metadata"]["name"]
        if name in self.leases:
            return status(409, "AlreadyExists")
        lease["metadata"]["resourceVersion"] = str(next(self._versions))
        self.leases[name] = lease
        return JSONResponse(lease, 201)

    async def _lease(self, request: Request) -> Response:
        if (refusal := self._refusal()) is not None:
            return refusal
        lease = self.leases.get(request.path_params["name"])
        if lease is None:
            return status(404, "NotFound")
        if request.method == "PATCH":
            body = json.loads(await request.body())
            if body["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
                return status(409, "Conflict")
            lease["spec"] |= body["spec"]
            lease["metadata"]["resourceVersion"] = str(next(self._versions))
        return JSONResponse(lease)

    def _refusal(self) -> Response | None:
        if not self.busy:
            return None
        self.busy -= 1
        return status(429, "TooManyRequests", {"Retry-After": "0"})

    # What StatefulSets and kubelets do

    async def set_replicas(self, name: str, n: int) -> None:
        """By whom ever: pods come, or those of the highest numbers go."""
        its = self.sets.setdefault(name, {})
        its.update(replicas=n, version=str(next(self._versions)))
        for i in range(n):
            if f"{name}-{i}" not in self.pods:
                await self.start_pod(f"{name}-{i}")
        for pod in sorted(self.pods):
            title, _, number = pod.rpartition("-")
            if title == name and int(number) >= n:
                self.delete_pod(pod)

    async def start_pod(self, name: str) -> None:
        uid = f"uid-{next(self._uids)}"
        node = f"node-of-{uid}"
        self.nodes[node] = []
        pod: dict[str, Any] = {
            "metadata": {"name": name, "uid": uid, "labels": {"set": name.rpartition("-")[0]}},
            "spec": {"nodeName": node, "containers": [{"name": "agent"}]},
            "status": {"podIP": "127.0.0.1", "containerStatuses": [{"state": {"running": {}}}]},
        }
        if self._make_agent is not None:
            agent = self._agents[uid] = await self._make_agent(name, uid)
            pod["status"]["podIP"] = agent.ip
        self.pods[name] = pod
        self._note("ADDED", pod)

    def delete_pod(self, name: str) -> None:
        """SIGTERM, then the kubelet says that it has ended, and it is gone."""
        pod = self.pods[name]
        if "deletionTimestamp" in pod["metadata"]:
            return
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self._note("MODIFIED", pod)
        task = asyncio.create_task(self._end(name))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, name: str) -> None:
        pod = self.pods[name]
        agent = self._agents.pop(pod["metadata"]["uid"], None)
        if agent is not None:
            await agent.stop()
        terminated = {"terminated": {"containerID": "containerd://1", "exitCode": 0}}
        pod["status"]["containerStatuses"] = [{"state": terminated}]
        self._note("MODIFIED", pod)
        self.forget_pod(name)
        title, _, number = name.rpartition("-")
        if int(number) < self.sets[title]["replicas"]:
            await self.start_pod(name)

    def forget_pod(self, name: str) -> None:
        """It is deleted by force: its node has said nothing."""
        self._note("DELETED", self.pods.pop(name))

    def break_watches(self, *, expire: bool = False) -> None:
        """Connections break; with `expire`, what has happened so far is not told again."""
        if expire:
            self._expired = next(self._versions)
        self._watch_breaks.set()
        self._watch_breaks = asyncio.Event()

    def _note(self, kind: str, pod: dict[str, Any]) -> None:
        version = next(self._versions)
        pod["metadata"]["resourceVersion"] = str(version)
        self._events.append((version, kind, copy.deepcopy(pod)))
        self._changed.set()
        self._changed = asyncio.Event()


def _has(pod: dict[str, Any], chosen: str) -> bool:
    """Whether it has all these labels: KEY=VALUE,KEY=VALUE."""
    labels: dict[str, str] = pod["metadata"]["labels"]
    wanted = (each.partition("=") for each in chosen.split(",") if each)
    return all(labels.get(key) == value for key, _, value in wanted)


def status(code: int, reason: str, headers: dict[str, str] | None = None) -> Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": reason}
    return JSONResponse(body, code, headers)
