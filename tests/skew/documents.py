"""What processes of this version tell each other as JSON, and leave on disk.

    python -m tests.skew.documents

Run it when a minor version is released, beside `tests.skew.freeze`: the next one must read these.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.deploy.clusters import cluster_with, model_with
from twolane.deploy.agent.ended import Ended
from twolane.deploy.agent.term import Term
from twolane.deploy.controller.desired import (
    Change,
    Desired,
    Done,
    Pin,
    Removal,
    Rollout,
    Seat,
    Size,
)
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.process.evidence import Evidence
from twolane.deploy.process.handshake import Ready
from twolane.deploy.ray_cluster.agent_actor import AgentPlan
from twolane.deploy.ray_cluster.agents import HostPlan
from twolane.deploy.ray_cluster.controller_actor import ClusterPlan
from twolane.deploy.spec.cluster_spec import HostSetSpec, Resource
from twolane.deploy.spec.spec_json import to_json
from twolane.deploy.spec.specs import RouterSpec, WorkerSpec
from twolane.security.tls import TlsFiles

KEPT = Path(__file__).parent / "documents.json"
KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(AgentPlan, ClusterPlan, Desired, Ended, Event, Evidence, Ready, RouterSpec, Term),
        WorkerSpec,
    )
}
READY = Ready("h:1", "h:2", 7, "h:3", "cpu", "h:4", "unix:/a", "h:5")
SETS = (
    HostSetSpec(name="gpu", pools=("prefill",), most=2, gpus=1, resources=(Resource("r", 1.0),)),
)


def examples() -> dict[str, Any]:
    """One of each kind, by its name. Its lists have a member."""
    cluster = cluster_with(
        model_with(model_dir="/m", name="m"), prefill=1, decode=1, host_sets=SETS, secret="s"
    )
    plan = AgentPlan(
        cluster="c", host_name="a", ip="h", port=1, gpus=("0",), secret="s",
        tls=TlsFiles(Path("/ca"), Path("/cert"), Path("/key")),
    )  # fmt: skip
    desired = Desired(
        revision=3,
        pins=(Pin(pool="decode", n=2, left_s=60.0),),
        cordoned=("b",),
        seats=(Seat(name="decode-0", pool="decode", host="a", devices=("0",), roles=("decode",)),),
        removals=(Removal(name="decode-0", hand_over=True),),
        undrain=("decode-1",),
        sizes=(Size(pool="decode", n=2),),
        mode="dry-run",
        config=(("max_waiting", "7"),),
        config_revision=1,
        rollout=Rollout(before="/m", after="/n", canary=0.1, extra=("decode",)),
        done=(
            Done(
                request_id="r",
                changes=(Change(subject="decode-0", before="", after="starts"),),
                epoch=7,
            ),
        ),
    )
    evidence = Evidence(
        name="decode-0", epoch=7, pid=8, start_ticks=9, boot_id="b", pid_namespace="p",
        digest="d", routers=("h:1",), devices=("0",), pool="decode", roles=("decode",),
        ready=READY,
    )  # fmt: skip
    found = (
        plan,
        ClusterPlan(cluster=cluster, hosts=(HostPlan(agent=plan, seats=1),)),
        desired,
        Ended("decode-0", 7, 8, "was killed", "A", ("h:1",)),
        Event(kind=Kind.STARTED, name="decode-0", epoch=7, pid=8, endpoint="h:1"),
        evidence,
        READY,
        cluster.router(),
        Term(4, "c"),
        cluster.workers("h:1")[0],
    )
    return {type(each).__name__: each for each in found}


def main() -> None:
    documents = {name: json.loads(to_json(each)) for name, each in examples().items()}
    KEPT.write_text(json.dumps(documents, indent=1) + "\n")


if __name__ == "__main__":
    main()
