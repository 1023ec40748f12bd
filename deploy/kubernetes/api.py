"""A client for the few calls of the Kubernetes API that a controller makes.

ApiError                 any answer that is no success; `status` is its HTTP status
├── ConflictError        409: another client changed the object first
├── BusyError            429: the server asks for patience, `retry_after_s`
└── ExpiredError         410: the watch is too old, list again
"""

from __future__ import annotations

import json
import math
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2 as httpx

from twolane.deploy.errors import StartError
from twolane.deploy.kubernetes.pods import Pod, pod_of

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CALL_S = 10.0
_WATCH_S = 60  # then the server ends a watch, and another is opened
_WATCH_MARGIN_S = 15.0
_MERGE = "application/merge-patch+json"
_BUSY_S = 1.0  # if the server does not say

UnreachableError = httpx.TransportError


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ConflictError(ApiError):
    pass


class ExpiredError(ApiError):
    pass


class BusyError(ApiError):
    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(429, message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Scale:
    """How many pods a StatefulSet is to have, and the version of the object that said so."""

    replicas: int
    version: str


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds it (empty: it is free), for how long after each renewal, how often that was another
    one, and the version of the object."""

    holder: str
    lasts_s: float
    n_holders: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConfig:
    """Where the API server is, and who we are there. `token` is read again for every call, as the
    kubelet renews it. `ca`: the server's authority; None: those of this machine. `selector`: the
    labels of the pods to look at; empty: all pods."""

    url: str
    namespace: str
    token: Path | None = None
    ca: Path | None = None
    watch_s: int = _WATCH_S
    selector: str = ""


def in_cluster(
    environment: Mapping[str, str], namespace: str | None, selector: str = ""
) -> ApiConfig:
    """From within a pod. `namespace`: None is the pod's own. Raises `StartError`."""
    host = environment.get("KUBERNETES_SERVICE_HOST")
    if not host:
        raise StartError("launcher is kubernetes, and this is no pod: KUBERNETES_SERVICE_HOST")
    if ":" in host:
        host = f"[{host}]"
    port = environment.get("KUBERNETES_SERVICE_PORT_HTTPS", "443")
    try:
        own = (_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise StartError(f"the pod has no service account: {error}") from error
    return ApiConfig(
        url=f"https://{host}:{port}",
        namespace=namespace or own,
        token=_ACCOUNT / "token",
        ca=_ACCOUNT / "ca.crt",
        selector=selector,
    )


class KubernetesApi:
    """An async context manager. All methods raise `ApiError`, and `UnreachableError` if the server
    does not answer."""

    def __init__(self, config: ApiConfig) -> None:
        self._config = config
        context = ssl.create_default_context(cafile=config.ca) if config.ca else True
        self._client = httpx.AsyncClient(base_url=config.url, timeout=_CALL_S, verify=context)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def scale(self, name: str) -> Scale:
        return _scale(await self._call("GET", self._scale_path(name)))

    async def set_scale(self, name: str, replicas: int, version: str) -> Scale:
        """Raises `ConflictError` if the object is not of that version any more."""
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        return _scale(await self._call("PATCH", self._scale_path(name), body))

    async def lease(self, name: str) -> Lease | None:
        """None: there is none so far."""
        try:
            return _lease(await self._call("GET", f"{self._leases_path}/{name}"))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def set_lease(self, name: str, holder: str, lasts_s: float, found: Lease | None) -> None:
        """Acquire, renew or release the one that was found. Raises `ConflictError` if it is another
        one meanwhile."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, str | int] = {
            "holderIdentity": holder,
            "leaseDurationSeconds": math.ceil(lasts_s),
            "renewTime": now,
        }
        if found is None or (holder and holder != found.holder):
            n = 0 if found is None else found.n_holders + 1
            spec |= {"acquireTime": now, "leaseTransitions": n}
        if found is not None:
            body = {"metadata": {"resourceVersion": found.version}, "spec": spec}
            await self._call("PATCH", f"{self._leases_path}/{name}", body)
            return
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        await self._call(
            "POST", self._leases_path, kind | {"metadata": {"name": name}, "spec": spec}
        )

    async def pods(self) -> tuple[list[Pod], str]:
        """All pods that the selector chooses, and the version from which a watch goes on."""
        listed = await self._call("GET", self._pods_path, params=self._selected())
        return [pod_of(item) for item in listed["items"]], listed["metadata"]["resourceVersion"]

    async def watch_pods(self, version: str) -> AsyncIterator[tuple[str, Pod]]:
        """Yield ADDED, MODIFIED or DELETED with each pod that has changed since `version`. Ends
        when the server ends it. Raises `ExpiredError`."""
        params: dict[str, str | int] = {
            **self._selected(),
            "watch": 1,
            "resourceVersion": version,
            "timeoutSeconds": self._config.watch_s,
        }
        within = httpx.Timeout(_CALL_S, read=self._config.watch_s + _WATCH_MARGIN_S)
        request = self._client.stream(
            "GET", self._pods_path, params=params, headers=self._headers(), timeout=within
        )
        async with request as answer:
            if answer.status_code >= 400:
                raise _error(answer.status_code, await answer.aread(), answer.headers)
            async for line in answer.aiter_lines():
                try:
                    event = json.loads(line)
                except ValueError as error:
                    raise ApiError(answer.status_code, f"a broken event: {error}") from error
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise _error(status.get("code", 500), json.dumps(status).encode(), {})
                if event["type"] != "BOOKMARK":
                    yield event["type"], pod_of(event["object"])

    async def taints(self, node: str) -> set[str]:
        """The keys of the node's taints."""
        found = await self._call("GET", f"/api/v1/nodes/{node}")
        return {taint["key"] for taint in found.get("spec", {}).get("taints", [])}

    @property
    def _pods_path(self) -> str:
        return f"/api/v1/namespaces/{self._config.namespace}/pods"

    @property
    def _leases_path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._config.namespace}/leases"

    def _selected(self) -> dict[str, str]:
        selector = self._config.selector
        return {"labelSelector": selector} if selector else {}

    def _scale_path(self, name: str) -> str:
        return f"/apis/apps/v1/namespaces/{self._config.namespace}/statefulsets/{name}/scale"

    def _headers(self) -> dict[str, str]:
        token = self._config.token
        if token is None:
            return {}
        try:
            return {"Authorization": f"Bearer {token.read_text(encoding='utf-8').strip()}"}
        except OSError as error:
            raise ApiError(401, f"the pod's token cannot be read: {error}") from error

    async def _call(
        self, method: str, path: str, body: object = None, params: dict[str, str] | None = None
    ) -> Any:
        headers = self._headers()
        content = None
        if body is not None:
            headers["Content-Type"] = _MERGE if method == "PATCH" else "application/json"
            content = json.dumps(body)
        answer = await self._client.request(
            method, path, headers=headers, content=content, params=params
        )
        if answer.status_code >= 400:
            raise _error(answer.status_code, answer.content, answer.headers)
        try:
            return answer.json()
        except ValueError as error:  # of a proxy
            raise ApiError(answer.status_code, f"a broken answer: {error}") from error


def _scale(answer: Any) -> Scale:
    return Scale(answer["spec"].get("replicas", 0), answer["metadata"]["resourceVersion"])


def _lease(answer: Any) -> Lease:
    spec = answer.get("spec", {})
    return Lease(
        spec.get("holderIdentity") or "",
        spec.get("leaseDurationSeconds") or 0,
        spec.get("leaseTransitions") or 0,
        answer["metadata"]["resourceVersion"],
    )


def _error(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = body[:200].decode(errors="replace")
    if status == 409:
        return ConflictError(status, message)
    if status == 410:
        return ExpiredError(status, message)
    if status == 429:
        said = headers.get("Retry-After", "")
        return BusyError(message, float(said) if said.isdigit() else _BUSY_S)
    return ApiError(status, message)
