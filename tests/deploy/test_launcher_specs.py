from __future__ import annotations

import pytest

from tests.deploy.clusters import cluster_with, model_with
from twolane.deploy.launch.restart import RestartConfig, RestartPolicy
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.settings import TimingSpec, WorkerSettings
from twolane.deploy.spec.spec_json import from_json, to_json
from twolane.deploy.spec.specs import RouterSpec, WorkerSpec

MODEL = model_with(model_dir="/m", name="m", kv_bytes=7)
CLUSTER = cluster_with(
    MODEL,
    prefill=2,
    decode=1,
    colocated=1,
    settings=WorkerSettings(transports=("tcp",)),
    timing=TimingSpec(lease_s=2),
)


@pytest.mark.parametrize(
    "spec",
    [CLUSTER, CLUSTER.router(), *CLUSTER.workers("h:1")],
    ids=lambda spec: type(spec).__name__,
)
def test_specs_survive_the_way_through_json(spec: ClusterSpec | RouterSpec | WorkerSpec) -> None:
    assert from_json(type(spec), to_json(spec)) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"router_id": "r"}', "missing 1 required keyword-only argument: 'model'"),
        ('{"router_id": 3}', "router_id is 3; it must be of type str"),
        ('{"model": {"config": {"model_dir": "", "exact": 1}}}', r"model\.config\.exact is 1; it"),
        (
            '{"model": {"config": {"model_dir": 3}}}',
            r"model_dir is 3; it must be of type Path",
        ),
        ('{"timing": {"lease_s": "2"}}', r"timing\.lease_s is '2'; it must be of type float"),
        ("[]", "must be an object"),
        ("nonsense", "Expecting value"),
    ],
)
def test_a_wrong_spec_is_refused_naming_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(RouterSpec, text)


def test_every_worker_has_its_own_name_and_epoch() -> None:
    workers = CLUSTER.workers("h:1")
    assert [w.worker_id for w in workers] == ["prefill-0", "prefill-1", "decode-0", "colocated-0"]
    assert [w.roles for w in workers[1:]] == [("prefill",), ("decode",), ("prefill", "decode")]
    assert len({w.epoch for w in workers}) == 4
    reborn = workers[0].reborn()
    assert reborn.worker_id == "prefill-0"
    assert reborn.epoch != workers[0].epoch


def test_restarts_wait_longer_each_time_and_calm_down() -> None:
    policy = RestartPolicy(RestartConfig(first_delay_s=1, most_delay_s=4, calm_s=60))
    assert [policy.delay_s(now) for now in (0, 1, 3, 7, 15)] == [0, 1, 2, 4, 4]
    assert policy.delay_s(76) == 0
    assert policy.delay_s(77) == 1


def test_router_that_had_served_for_a_while_starts_again_at_once_however_often() -> None:
    policy = RestartPolicy(RestartConfig(first_delay_s=1, most_delay_s=4, well_s=3))
    delays = []
    for now, served_s in ((0, 0.0), (1, 0.5), (5, 3.0), (9, 3.5), (13, 4.0), (14, 1.0), (15, 1.0)):
        policy.served(served_s)
        delays.append(policy.delay_s(now))
    assert delays == [0, 1, 0, 0, 0, 1, 2]
