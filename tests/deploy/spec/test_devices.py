from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import Any

import pytest

from tests.deploy.clusters import changed, cluster_with, model_with
from twolane.deploy.errors import StartError
from twolane.deploy.spec.cluster_spec import ClusterSpec, HostSpec, PoolSpec
from twolane.deploy.spec.devices import (
    environment_of,
    read_gpus,
    settled,
    settled_on,
    visible_devices,
)
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec

MODEL = model_with(model_dir="/m", name="m", tensor_parallel=2)
SINGLE = changed(MODEL, tensor_parallel=1)
CLUSTER = cluster_with(MODEL, colocated=2)
FOUR = ("0", "1", "2", "3")


def devices(cluster: ClusterSpec) -> list[tuple[str, ...]]:
    return [worker.devices for worker in cluster.workers("h:1")]


def test_each_worker_gets_gpus_of_its_own_and_keeps_them() -> None:
    workers = settled(CLUSTER, [*FOUR, "4"]).workers("h:1")
    assert [worker.devices for worker in workers] == [("0", "1"), ("2", "3")]
    assert workers[1].reborn().devices == ("2", "3")
    assert environment_of(workers[1]) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert devices(settled(cluster_with(SINGLE, colocated=2), FOUR)) == [("0",), ("1",)]


@pytest.mark.parametrize(
    "spec",
    [
        RouterSpec(router_id="r", model=MODEL),
        cluster_with(changed(MODEL, device="cpu"), colocated=1).workers("h:1")[0],
        cluster_with(changed(SINGLE, engine="fake"), colocated=1).workers("h:1")[0],
    ],
    ids=["router", "worker on the CPU", "fake worker"],
)
def test_a_process_without_gpus_starts_with_few_arenas_of_memory_unless_told_otherwise(
    spec: ProcessSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    assert environment_of(spec) == {"MALLOC_ARENA_MAX": "2"}
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert environment_of(spec) == {"MALLOC_ARENA_MAX": "4"}


@pytest.mark.parametrize(
    ("device", "kinds", "expected"),
    [
        ("auto", (0, 0, 2), "auto"),
        ("auto", (1, 1, 2), "auto"),
        ("auto", (1, 1, 0), "auto"),
        ("auto", (2, 2, 1), "cpu"),  # not four of them on GPUs, and one in another dtype
        ("cpu", (0, 0, 1), "cpu"),
        ("cuda", (1, 1, 1), "cuda"),
    ],
)
def test_all_workers_compute_on_the_same_kind_of_device(
    device: str, kinds: tuple[int, int, int], expected: str
) -> None:
    prefill, decode, colocated = kinds
    model = changed(SINGLE, device=device)
    cluster = cluster_with(model, prefill=prefill, decode=decode, colocated=colocated)
    made = settled(cluster, FOUR)
    assert {worker.model.config.device for worker in made.workers("h:1")} == {expected}
    given = {gpu for each in devices(made) for gpu in each}
    assert len(given) == (0 if expected == "cpu" else cluster.n_workers)


def test_workers_with_one_role_share_gpus_where_asked_to_and_else_leave_them_alone() -> None:
    pair = cluster_with(changed(SINGLE, kv_bytes=1 << 30), prefill=1, decode=1)
    assert {w.model.config.device for w in settled(pair, FOUR[:1]).workers("h:1")} == {"cpu"}
    shared = settled(pair, FOUR[:1], share=True)
    assert {w.model.config.device for w in shared.workers("h:1")} == {"auto"}
    assert devices(shared) == [("0",), ("0",)]
    ranks = cluster_with(MODEL, prefill=1, decode=1)  # each of two
    assert {w.model.config.device for w in settled(ranks, FOUR[:3]).workers("h:1")} == {"cpu"}
    assert {w.model.config.device for w in settled(ranks, FOUR).workers("h:1")} == {"auto"}


def two_pools(one: str, other: str) -> ClusterSpec:
    pools = [
        PoolSpec(name=name, roles=("prefill", "decode"), model=changed(SINGLE, device=device))
        for name, device in (("a", one), ("b", other))
    ]
    return ClusterSpec(model=SINGLE, pools=tuple(pools))


def test_pools_may_leave_their_device_to_another_but_not_differ() -> None:
    assert devices(settled(two_pools("auto", "cuda"), FOUR)) == [("0",), ("1",)]
    assert {
        w.model.config.device for w in settled(two_pools("cpu", "auto"), FOUR).workers("h")
    } == {"cpu"}
    with pytest.raises(StartError, match="same kind of device; here: cpu in pool b, cuda in pool"):
        settled(two_pools("cuda", "cpu"), FOUR)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"2 workers need 4 GPUs in all \(colocated: 2 of 2\); 3 can be seen here\. Either "),
        ({}, r"start fewer workers, or spread each over fewer GPUs \(--tensor-parallel\), or "),
        ({}, r"let workers share GPUs \(--share-gpus\), or compute on the CPU \(--device cpu\)$"),
        ({"tensor_parallel": 4}, "a worker of pool colocated needs 4 GPUs of one host; 3 can be"),
        ({"tensor_parallel": 4}, r"here\. Either spread each over fewer GPUs .*, or compute on "),
    ],
)
def test_too_few_gpus_are_refused_with_what_can_be_done(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartError, match=message):
        settled(cluster_with(changed(MODEL, **changes), colocated=2), FOUR[:3])


def test_gpus_are_shared_only_where_asked_for_and_with_bounded_memory() -> None:
    three = cluster_with(changed(SINGLE, n_pages=8), colocated=3)
    with pytest.raises(StartError, match="3 workers need 3 GPUs"):
        settled(three, FOUR[:2])
    assert devices(settled(three, FOUR[:2], share=True)) == [("0",), ("1",), ("0",)]
    assert devices(settled(three, FOUR, share=True)) == [("0",), ("1",), ("2",)]
    with pytest.raises(StartError, match=r"pool colocated share GPUs: .* --pages or --kv-bytes"):
        settled(cluster_with(SINGLE, colocated=3), FOUR[:2], share=True)


def test_ranks_share_gpus_where_no_host_has_one_for_each() -> None:
    wide = cluster_with(changed(MODEL, n_pages=8, tensor_parallel=4), colocated=1)
    with pytest.raises(StartError, match=r"needs 4 GPUs .* let workers share GPUs \(--share-gpus"):
        settled(wide, FOUR[:2])
    shared = settled(wide, FOUR[:2], share=True)
    assert devices(shared) == [("0", "1", "0", "1")]
    assert environment_of(shared.workers("h:1")[0]) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    pair = settled(cluster_with(changed(MODEL, n_pages=8), colocated=2), FOUR[:1], share=True)
    assert devices(pair) == [("0", "0"), ("0", "0")]
    with pytest.raises(StartError, match=r"--pages or --kv-bytes"):
        settled(cluster_with(MODEL, colocated=1), FOUR[:1], share=True)


@pytest.mark.parametrize(
    ("changes", "visible"),
    [
        ({"device": "cpu"}, FOUR),
        ({"engine": "fake", "tensor_parallel": 1}, FOUR),
        ({}, ()),
        ({"device": "cuda"}, ()),
    ],
)
def test_where_nothing_is_to_be_shared_out_all_see_all(
    changes: dict[str, Any], visible: tuple[str, ...]
) -> None:
    made = settled(cluster_with(changed(MODEL, **changes), colocated=2), visible)
    assert devices(made) == [(), ()]
    is_on_cpu = changes.get("device") != "cuda"
    assert environment_of(made.workers("h:1")[0]).keys() == (
        {"MALLOC_ARENA_MAX"} if is_on_cpu else set()
    )
    assert "CUDA_VISIBLE_DEVICES" not in environment_of(made.router())


def test_gpus_hidden_from_us_are_not_given_away() -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "3, GPU-ab"}) == ("3", "GPU-ab")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}) == ()


def test_gpus_are_named_by_their_uuids_and_those_too_old_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = "GPU-aa, 9.0\nGPU-bb, 8.9\nGPU-cc, 10.0\n"
    assert read_gpus(table) == ("GPU-aa", "GPU-cc")
    assert read_gpus("No devices were found\n") == ()

    def ask(command: tuple[str, ...], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[0] == "nvidia-smi"
        return subprocess.CompletedProcess(command, 0, stdout=table)

    monkeypatch.setattr(subprocess, "run", ask)
    assert visible_devices({}) == ("GPU-aa", "GPU-cc")


def on_hosts(cluster: ClusterSpec, **hosts: dict[str, Any]) -> ClusterSpec:
    """The cluster on hosts of those names."""
    specs = [
        HostSpec(name=name, agent=f"{name}:1", bind_host=f"10.{name}", advertise_host="", **its)
        for name, its in hosts.items()
    ]
    return replace(cluster, hosts=tuple(specs))


def host_names(cluster: ClusterSpec) -> list[str]:
    return [worker.host_name for worker in cluster.workers("h:1")]


def test_workers_on_cpus_take_the_seats_of_hosts() -> None:
    cluster = cluster_with(changed(SINGLE, device="cpu"), prefill=1, decode=2)
    made = settled_on(on_hosts(cluster, a={"seats": 1}, b={"seats": 2}), {})
    assert sorted(host_names(made)) == ["a", "b", "b"]
    assert {worker.bind_host for worker in made.workers("h:1")} == {"10.a", "10.b"}
    assert made.router().host_name == "a"
    assert devices(made) == [(), (), ()]


def test_without_seats_each_host_takes_its_share() -> None:
    cluster = cluster_with(changed(SINGLE, device="cpu"), prefill=2, decode=2)
    made = settled_on(on_hosts(cluster, a={}, b={}), {})
    assert sorted(host_names(made)) == ["a", "a", "b", "b"]
    assert set(host_names(made)[:2]) == {"a", "b"}, "each host has a prefill worker"


def test_too_few_seats_are_refused() -> None:
    cluster = on_hosts(cluster_with(changed(SINGLE, device="cpu"), colocated=3), a={"seats": 2})
    with pytest.raises(StartError, match=r"3 workers need 3 seats; the hosts have 2 \(hosts"):
        settled_on(cluster, {})


def test_gpus_are_those_that_agents_offer_or_the_topology_names() -> None:
    cluster = on_hosts(cluster_with(MODEL, colocated=2), a={}, b={"gpus": ("6", "7")})
    made = settled_on(cluster, {"a": ("0", "1"), "b": FOUR})
    assert list(zip(host_names(made), devices(made), strict=True)) == [
        ("a", ("0", "1")),
        ("b", ("6", "7")),
    ]
