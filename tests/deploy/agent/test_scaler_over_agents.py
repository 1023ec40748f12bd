"""A cluster of two hosts that sizes its pools, whose controller dies."""

from __future__ import annotations

import pytest

from tests.deploy.agent.agent_cluster import AgentCluster, wait_until
from tests.timing import PATIENT
from twolane import AdminClient
from twolane.v1 import acts_pb2, cluster_pb2


def roles(cluster: AgentCluster) -> dict[str, tuple[str, ...]]:
    status = cluster.status()
    return {its.worker_id: its.roles for its in status.workers if its.state == "alive"}


def set_mode(admin: AdminClient, mode: str) -> None:
    admin.call("SetScaler", acts_pb2.SetScalerRequest(mode=mode))


def scaler(admin: AdminClient) -> cluster_pb2.ScalerStatus:
    asked = cluster_pb2.GetClusterStatusRequest(without_requests=True)
    found: cluster_pb2.GetClusterStatusResponse = admin.call("GetClusterStatus", asked)
    return found.scaler


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_next_controller_goes_on_with_what_was_decided_flipped_and_paused() -> None:
    with AgentCluster(
        (2, 2),
        [{"role": "prefill"}, {"role": "decode"}],
        timing=PATIENT,
        scaler={"autoscale": True, "budget": 4, "min_decode": 2},
    ) as cluster:
        launcher = cluster.launcher()
        launcher.until("ready")
        with cluster.admin() as admin:
            wait_until(lambda: {*roles(cluster)} == {"prefill-0", "decode-0", "decode-1"})
            set_mode(admin, "paused")
            flip = acts_pb2.FlipWorkerRequest(worker_id="decode-1")
            admin.call("FlipWorker", flip)
            wait_until(lambda: roles(cluster)["decode-1"] == ("prefill",))
            launcher.kill()
            launcher = cluster.launcher()
            launcher.until("ready")
            wait_until(lambda: scaler(admin).mode == "paused")
            assert roles(cluster)["decode-1"] == ("prefill",)
            assert scaler(admin).held_gpus == 3
            set_mode(admin, "on")
            wait_until(lambda: [*roles(cluster).values()].count(("decode",)) == 2)
            assert scaler(admin).held_gpus <= 4
