"""Ray's own scheduler and KubeRay provider with the chart's RayCluster, for the nodes that we ask
for: which patches the Kubernetes API gets from them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from ray.autoscaler._private.kuberay.node_provider import IKubernetesHttpApiClient
from ray.autoscaler.v2.instance_manager.cloud_providers.kuberay.cloud_provider import (
    KubeRayProvider,
)
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.instance_manager.node_provider import NodeKind
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import ClusterResourceConstraint, NodeState
from ray.core.generated.instance_manager_pb2 import Instance

from tests.deploy.chart.rendered import NAMESPACE, RELEASE, render
from twolane.deploy.ray_cluster.agent_actor import AgentPlan
from twolane.deploy.ray_cluster.made_nodes import MadeNodes
from twolane.deploy.spec.parse_topology import parse_topology
from twolane.deploy.spec.resolve import resolve

IDLE_S = 60
POOLS = ("prefill", "decode")
RESOURCES = {"requests": {"cpu": "8", "memory": "64Gi"}, "limits": {"memory": "64Gi"}}
VALUES = {
    "mode": "kuberay",
    "executor": "ray",
    "tls": {"mode": "none"},
    "ray": {"idleTimeoutSeconds": IDLE_S},
    "hostSets": [
        {"name": f"{pool}-node", "pools": [pool], "replicas": 0, "most": 4, "gpus": 1, "seats": 1}
        | {"resources": RESOURCES}
        for pool in POOLS
    ],
}
CHART = render(VALUES)
(TOPOLOGY,) = (its for its in CHART if its["metadata"]["name"] == "llm-topology")
SETS = resolve(parse_topology(yaml.safe_load(TOPOLOGY["stringData"]["cluster.yaml"]))).host_sets


def ray_cluster() -> dict[str, Any]:
    """As the chart renders it, and an API server has it."""
    (cluster,) = (copy.deepcopy(its) for its in CHART if its["kind"] == "RayCluster")
    cluster["metadata"] |= {"namespace": NAMESPACE, "resourceVersion": "1"}
    for group in cluster["spec"]["workerGroupSpecs"]:
        group.setdefault("replicas", 0)  # the definition's default
    return cluster


class FakeKubernetes(IKubernetesHttpApiClient):  # type: ignore[misc]
    """Has one RayCluster and its pods, and takes JSON patches of it. It does what KubeRay does."""

    def __init__(self) -> None:
        self.cluster = ray_cluster()
        self.pods: dict[str, str] = {}  # groups by name
        self.patches: list[dict[str, Any]] = []
        self._n = 0

    def get(self, path: str) -> dict[str, Any]:
        if path.startswith("rayclusters"):
            return copy.deepcopy(self.cluster)
        items = [_pod(name, group) for name, group in self.pods.items()]
        return {"metadata": {"resourceVersion": "1"}, "items": items}

    def patch(self, path: str, payload: Any, content_type: str = "") -> dict[str, Any]:
        for each in payload:
            assert each["op"] == "replace"
            *_, number, key = each["path"].split("/")
            self.cluster["spec"]["workerGroupSpecs"][int(number)][key] = each["value"]
        self.patches += payload
        self._reconcile()
        return self.cluster

    def delete(self, path: str) -> dict[str, Any]:
        raise AssertionError(f"{path} is deleted")

    def _reconcile(self) -> None:
        for group in self.cluster["spec"]["workerGroupSpecs"]:
            name = group["groupName"]
            for pod in group.get("scaleStrategy", {}).get("workersToDelete", []):
                self.pods.pop(pod, None)
            while list(self.pods.values()).count(name) < group["replicas"]:
                self._n += 1
                self.pods[f"{name}-{self._n}"] = name


def _pod(name: str, group: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"ray.io/node-type": "worker", "ray.io/group": group}},
        "status": {"containerStatuses": [{"state": {"running": {}}}]},
    }


class Autoscaler:
    """One round: what we ask for, Ray's scheduler, Ray's provider. Nodes in `idle` have nothing of
    ours; on the others something holds all that they have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kubernetes = FakeKubernetes()
        self._provider = KubeRayProvider(
            RELEASE, {"namespace": NAMESPACE}, gcs_client=None, k8s_api_client=self.kubernetes
        )
        config = _derive_autoscaling_config_from_ray_cr(self.kubernetes.cluster)
        self._config = AutoscalingConfig(config, skip_content_hash=True)
        self._bundles: list[dict[str, float]] = []
        self._rounds = 0
        monkeypatch.setattr("ray.autoscaler.sdk.request_resources", self._requested)
        plan = AgentPlan(cluster="x", host_name="a", ip="10.0.0.1", port=7210, secret="")
        self._ours = MadeNodes(SETS, plan)

    def _requested(self, *, bundles: list[dict[str, float]]) -> None:
        self._bundles = bundles

    def round(self, wanted: Iterable[str], idle: Iterable[str] = ()) -> list[dict[str, Any]]:
        """The patches of one round."""
        self._ours._agents = self._held(wanted := [*wanted], {*idle})
        self._ours._ask(wanted)
        self._rounds += 1
        requests = [ResourceRequestUtil.make(bundle) for bundle in self._bundles]
        constraint = ClusterResourceConstraint(
            resource_requests=ResourceRequestUtil.group_by_count(requests)
        )
        instances = [
            self._instance(its.cloud_instance_id, its.node_type, its.cloud_instance_id in [*idle])
            for its in self._provider.get_non_terminated().values()
        ]
        configs = self._config.get_node_type_configs()
        reply = ResourceDemandScheduler(None).schedule(
            SchedulingRequest(
                disable_launch_config_check=True,
                node_type_configs=configs,
                max_num_nodes=self._config.get_max_num_nodes(),
                idle_timeout_s=IDLE_S,
                cluster_resource_constraints=[constraint],
                current_instances=instances,
            )
        )
        n = len(self.kubernetes.patches)
        shape = {its.instance_type: its.count for its in reply.to_launch}
        if shape:
            self._provider.launch(shape, f"launch-{self._rounds}")
        gone = [its.instance_id for its in reply.to_terminate]
        if gone:
            self._provider.terminate(gone, f"end-{self._rounds}")
        assert self._provider.poll_errors() == []
        return self.kubernetes.patches[n:]

    def _held(self, wanted: Sequence[str], idle: Collection[str]) -> dict[str, str]:
        """The wanted hosts that have a node with our agent."""
        found: dict[str, str] = {}
        for pool in POOLS:
            group = f"{pool}-node"
            nodes = [pod for pod, its in self.kubernetes.pods.items() if its == group]
            held = [pod for pod in nodes if pod not in idle]
            names = [name for name in wanted if name.startswith(pool)]
            found |= dict(zip(names, held, strict=False))
        return found

    def _instance(self, name: str, kind: str, is_idle: bool) -> AutoscalerInstance:
        total = self._config.get_node_type_configs()[kind].resources
        free = total if is_idle else {}
        return AutoscalerInstance(
            cloud_instance_id=name,
            ray_node=NodeState(
                node_id=name.encode(),
                instance_id=name,
                ray_node_type_name=kind,
                total_resources=total,
                available_resources=free,
                idle_duration_ms=(IDLE_S + 1) * 1000 if is_idle else 0,
            ),
            im_instance=Instance(
                instance_id=name,
                status=Instance.RAY_RUNNING,
                instance_type=kind,
                cloud_instance_id=name,
                node_kind=NodeKind.WORKER,
                node_id=name,
            ),
        )


def replicas(group: int, n: int) -> dict[str, Any]:
    path = f"/spec/workerGroupSpecs/{group}/replicas"
    return {"op": "replace", "path": path, "value": n}


@pytest.fixture
def autoscaler(monkeypatch: pytest.MonkeyPatch) -> Autoscaler:
    return Autoscaler(monkeypatch)


def test_both_pools_nodes_are_asked_for_at_once(autoscaler: Autoscaler) -> None:
    patches = autoscaler.round(["prefill-node-0", "decode-node-0", "decode-node-1"])
    assert sorted(patches, key=lambda its: str(its["path"])) == [replicas(0, 1), replicas(1, 2)]
    assert [*autoscaler.kubernetes.pods.values()].count("decode-node") == 2


def test_nothing_is_patched_while_nothing_changes(autoscaler: Autoscaler) -> None:
    wanted = ["prefill-node-0", "decode-node-0"]
    autoscaler.round(wanted)
    assert autoscaler.round(wanted) == []


@pytest.mark.parametrize("which", [0, 1, 2])
def test_only_the_idle_pod_is_named_to_be_deleted(autoscaler: Autoscaler, which: int) -> None:
    autoscaler.round(["prefill-node-0", *(f"decode-node-{i}" for i in range(3))])
    pods = [name for name, group in autoscaler.kubernetes.pods.items() if group == "decode-node"]
    left = ["prefill-node-0", "decode-node-0", "decode-node-1"]
    assert autoscaler.round(left) == [], "its agent has not ended: no pod is idle"
    patches = autoscaler.round(left, idle=[pods[which]])
    strategy = {"workersToDelete": [pods[which]]}
    path = "/spec/workerGroupSpecs/1/scaleStrategy"
    assert patches == [replicas(1, 2), {"op": "replace", "path": path, "value": strategy}]


def test_a_node_that_we_hold_stays_though_none_is_asked_for(autoscaler: Autoscaler) -> None:
    wanted = ["prefill-node-0", "decode-node-0", "decode-node-1"]
    autoscaler.round(wanted)
    assert autoscaler.round(wanted) == []
    assert autoscaler._bundles == []
    assert autoscaler.round([]) == [], "no pod is idle"


def test_a_node_that_is_lost_is_asked_for_again(autoscaler: Autoscaler) -> None:
    wanted = ["prefill-node-0", "decode-node-0", "decode-node-1"]
    autoscaler.round(wanted)
    lost = next(pod for pod, group in autoscaler.kubernetes.pods.items() if group == "decode-node")
    del autoscaler.kubernetes.pods[lost]
    autoscaler.round(wanted)
    assert len(autoscaler._bundles) == 3
