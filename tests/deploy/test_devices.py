from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.devices import devices_for, settled, visible_devices
from deploy.launcher import StartError
from deploy.spec import ClusterSpec, ModelSpec

MODEL = ModelSpec(model_dir="/m", name="m", tensor_parallel=2)
CLUSTER = ClusterSpec(model=MODEL, prefill=0, decode=0, colocated=2)
FOUR = ("0", "1", "2", "3")


def test_each_worker_gets_gpus_of_its_own() -> None:
    shared = replace(CLUSTER, devices=devices_for(CLUSTER, [*FOUR, "4"]))
    workers = shared.workers("h:1")
    assert [worker.devices for worker in workers] == [("0", "1"), ("2", "3")]
    assert workers[1].reborn().devices == ("2", "3")
    single = replace(CLUSTER, model=replace(MODEL, tensor_parallel=1))
    workers = replace(single, devices=devices_for(single, FOUR)).workers("h:1")
    assert [worker.devices for worker in workers] == [("0",), ("1",)]


@pytest.mark.parametrize(
    ("device", "kinds", "expected"),
    [
        ("auto", (0, 0, 2), "auto"),
        ("auto", (1, 1, 2), "cpu"),  # not two of them on a GPU, in another dtype
        ("auto", (1, 1, 0), "cpu"),
        ("cpu", (0, 0, 1), "cpu"),
        ("cuda", (1, 1, 1), "cuda"),  # each with one role refuses it
    ],
)
def test_all_workers_compute_on_the_same_kind_of_device(
    device: str, kinds: tuple[int, int, int], expected: str
) -> None:
    prefill, decode, colocated = kinds
    model = replace(MODEL, tensor_parallel=1, device=device)
    cluster = ClusterSpec(model=model, prefill=prefill, decode=decode, colocated=colocated)
    made = settled(cluster, FOUR)
    assert {worker.model.device for worker in made.workers("h:1")} == {expected}
    n_given = 0 if expected == "cpu" else cluster.n_workers
    assert made.devices == FOUR[:n_given]


def test_ranks_without_gpus_of_their_own_are_refused() -> None:
    with pytest.raises(StartError, match="2 workers of 2 GPUs each need 4; 3 can be seen here"):
        devices_for(CLUSTER, FOUR[:3])


def test_workers_that_share_a_gpu_must_be_told_how_much_of_it_each_takes() -> None:
    single = replace(CLUSTER, model=replace(MODEL, tensor_parallel=1))
    with pytest.raises(StartError, match=r"2 workers, and 1 GPU .* --pages or --kv-bytes"):
        devices_for(single, FOUR[:1])
    assert devices_for(replace(single, colocated=1), FOUR[:1]) == ("0",)


@pytest.mark.parametrize(
    ("changes", "visible"),
    [
        ({"device": "cpu"}, FOUR),
        ({"engine": "fake"}, FOUR),
        ({}, ()),
        # two workers share the one that there is
        ({"tensor_parallel": 1, "n_pages": 9}, ("0",)),
        ({"tensor_parallel": 1, "kv_bytes": 1 << 30}, ("0",)),
    ],
)
def test_where_nothing_is_to_be_shared_out_all_see_all(
    changes: dict[str, object], visible: tuple[str, ...]
) -> None:
    cluster = replace(CLUSTER, model=replace(MODEL, **changes))  # type: ignore[arg-type]
    assert devices_for(cluster, visible) == ()
    assert {worker.devices for worker in cluster.workers("h:1")} == {()}


def test_gpus_hidden_from_us_are_not_given_away() -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "3, GPU-ab"}) == ("3", "GPU-ab")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}) == ()
