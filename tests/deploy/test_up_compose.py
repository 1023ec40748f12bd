from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.deploy.clusters import changed, cluster_with, model_with
from twolane.deploy.bundled import model_path
from twolane.deploy.errors import StartError
from twolane.deploy.process.compose_router import router_config
from twolane.deploy.process.compose_worker import (
    GPU_STEP_LIMITS,
    build_worker,
    check_rows,
    lease_config,
    on_device,
    prefill_config,
    ready_limits,
    receiver_config,
    step_limits,
    step_watch_config,
    worker_config,
)
from twolane.deploy.process.engine_host import OpenedEngine, open_engine
from twolane.deploy.process.serving import serving
from twolane.deploy.spec.settings import RouterSettings, TimingSpec, WorkerSettings
from twolane.deploy.spec.specs import WorkerSpec
from twolane.engine.config import EngineConfig
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.kvtransfer.config import ReceiverConfig
from twolane.security.credentials import Credentials
from twolane.worker.config import StepLimits, StepWatchConfig
from twolane.worker.metrics import WorkerMetrics
from twolane.worker.peers.links import PeerDialer

FAKE = model_with(model_dir=str(model_path()), name="m", engine="fake", n_pages=8)
TIMING = TimingSpec(heartbeat_s=0.05, suspicion_s=0.2, lease_s=0.5, grace_s=1.5, stop_grace_s=2.5)
LIMITS = RouterSettings(
    max_prompt_tokens=100, max_output_tokens=50, max_queued=7, growth_tokens=9, beside_rows_s=0.02
)
PAIR = cluster_with(FAKE, prefill=1, decode=1, timing=TIMING)
CLUSTER = replace(PAIR, settings=LIMITS)


def test_what_was_given_reaches_the_router() -> None:
    config = router_config(CLUSTER.router())
    assert config.models == ("m",)
    assert (config.limits.prompt_tokens, config.limits.max_tokens) == (100, 50)
    assert (config.admission.max_queued, config.admission.growth_reserve_tokens) == (7, 9)
    assert config.admission.beside_rows_s == 0.02
    assert (config.membership.heartbeat_s, config.membership.suspicion_s) == (0.05, 0.2)


def test_what_was_not_given_leaves_the_routers_defaults() -> None:
    plain = router_config(replace(CLUSTER, settings=RouterSettings()).router())
    assert plain.admission == type(plain.admission)()
    assert plain.limits == type(plain.limits)()


def test_what_was_given_reaches_the_worker() -> None:
    config = worker_config(CLUSTER.workers("h:1")[0])
    assert (config.worker_id, config.routers) == ("prefill-0", ("h:1",))
    assert (config.announce_every_s, config.drain_for_s) == (0.05, 2.5)
    sessions = config.sessions
    assert (sessions.grace_s, sessions.tombstone_s, sessions.suspicion_s) == (1.5, 0.5, 0.2)


def test_what_was_given_of_batching_reaches_the_prefill_role() -> None:
    settings = WorkerSettings(
        prefill_window_s=0.004, prefill_watermark_rows=0, holding_cap_share=0.25
    )
    config = prefill_config(replace(CLUSTER.workers("h:1")[0], settings=settings))
    assert (config.batching.window_s, config.batching.watermark_rows) == (0.004, 0)
    assert config.holding_cap_share == 0.25
    assert config.sender.lease.lease_s == TIMING.lease_s
    plain = prefill_config(WorkerSpec(worker_id="w", epoch=1, roles=(), model=FAKE, routers=()))
    assert plain == type(plain)()
    assert plain.batching.window_s == 0.0


def test_prefill_learns_how_long_to_wait_where_it_is_told_to() -> None:
    settings = WorkerSettings(prefill_learns_window=True)
    config = prefill_config(replace(CLUSTER.workers("h:1")[0], settings=settings))
    assert config.batching.window_s is None
    with pytest.raises(ValueError, match="that it is learnt: give one"):
        WorkerSettings(prefill_learns_window=True, prefill_window_s=0.003)


def test_waits_for_a_peer_scale_with_the_lease() -> None:
    assert receiver_config(TimingSpec()) == ReceiverConfig()
    longer = receiver_config(TimingSpec(lease_s=60.0))
    assert (longer.reattach_s, longer.landing_timeout_s, longer.fence_after_s) == (10, 30, 600)
    shorter = receiver_config(TimingSpec(lease_s=0.6, heartbeat_s=0.1))
    assert shorter.fence_after_s == pytest.approx(6)
    assert shorter.reattach_s < longer.reattach_s


@given(lease_s=st.floats(0.01, 100), heartbeat_s=st.floats(0.01, 100))
def test_any_lease_makes_a_sound_configuration(lease_s: float, heartbeat_s: float) -> None:
    assume(heartbeat_s < lease_s)
    timing = TimingSpec(lease_s=lease_s, heartbeat_s=heartbeat_s, suspicion_s=2 * heartbeat_s)
    config = lease_config(timing)
    assert config.lease_s == lease_s
    assert config.heartbeat_s <= heartbeat_s


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (WorkerSettings(), StepLimits()),
        (WorkerSettings(step_tokens=16), StepLimits(step_tokens=16, decode_rows=8)),
        (WorkerSettings(decode_rows=1000), StepLimits(step_tokens=2000, decode_rows=1000)),
        (WorkerSettings(step_tokens=9, decode_rows=8), StepLimits(step_tokens=9, decode_rows=8)),
    ],
)
def test_one_limit_of_a_step_makes_room_for_the_other(
    settings: WorkerSettings, expected: StepLimits
) -> None:
    assert step_limits(settings, StepLimits()) == expected


def test_a_worker_on_a_gpu_takes_more_at_a_time_unless_told_otherwise() -> None:
    (spec,) = cluster_with(FAKE, colocated=1).workers("h:1")
    assert worker_config(spec).limits == StepLimits()
    assert worker_config(spec, on_gpu=True).limits == GPU_STEP_LIMITS
    told = replace(spec, settings=WorkerSettings(decode_rows=4))
    expected = replace(GPU_STEP_LIMITS, decode_rows=4)
    assert worker_config(told, on_gpu=True).limits == expected


def test_a_gpu_is_made_ready_for_the_steps_that_its_worker_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_with(FAKE, prefill=1, decode=1)
    told = {s.pool: ready_limits(s) for s in cluster.workers("h:1")}
    assert told == {"prefill": replace(GPU_STEP_LIMITS, decode_rows=1), "decode": GPU_STEP_LIMITS}
    configs: list[EngineConfig] = []

    def load(config: EngineConfig, **_: object) -> FakeEngine:
        configs.append(config)
        return FakeEngine(FakeEngineConfig())

    monkeypatch.setattr("twolane.engine.load.load_engine", load)
    model = changed(FAKE, engine="model", device="cpu", n_pages=3)
    with open_engine(model, name="w", is_shared=False, ready=told["decode"]):
        pass
    assert [(c.ready_rows, c.ready_tokens) for c in configs] == [(256, 2048)]


@pytest.mark.parametrize(
    "settings", [WorkerSettings(step_tokens=1), WorkerSettings(step_tokens=8, decode_rows=8)]
)
def test_a_step_without_room_for_prefill_is_refused(settings: WorkerSettings) -> None:
    with pytest.raises(StartError, match="room"):
        step_limits(settings, StepLimits())


@pytest.mark.parametrize("name", ["lease_s", "suspicion_s"])
def test_times_shorter_than_a_heartbeat_are_refused(name: str) -> None:
    times: dict[str, float] = {name: 2.0}
    with pytest.raises(ValueError, match=f"{name} is 2; it must be more than heartbeat_s"):
        TimingSpec(heartbeat_s=2.0, **times)


def test_the_fake_engine_speaks_the_models_vocabulary_on_a_shared_pool() -> None:
    with open_engine(FAKE, name="w", is_shared=True) as power:
        assert power.memory is not None
        assert power.engine.spec.vocab_size == 2048
        power.engine.pool[7, :4] = 5
        assert list(power.memory.array[7 * power.engine.spec.page_bytes :][:5]) == [5, 5, 5, 5, 0]


def test_the_cpu_engine_has_the_pages_that_were_asked_for() -> None:
    cpu = changed(FAKE, engine="model", device="cpu", n_pages=3, max_context_tokens=64)
    for is_shared in (False, True):
        with open_engine(cpu, name="w", is_shared=is_shared) as power:
            assert power.engine.pool.shape[0] == power.engine.spec.n_pages == 3
            assert power.engine.spec.max_context_tokens == 64


@pytest.mark.parametrize("engine", ["model", "fake"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_pages": 2}, "a pool of 2 pages of 16 tokens is too small .* at least 3 are needed"),
        ({"model_dir": Path("/nowhere")}, "/nowhere"),
    ],
)
def test_an_engine_that_cannot_be_made_says_why(
    engine: str, changes: dict[str, Any], message: str
) -> None:
    spec = changed(FAKE, engine=engine, **changes)
    with (
        pytest.raises(StartError, match=message),
        open_engine(spec, name="w", is_shared=True),
    ):
        pass


def worker_on(device: str, *roles: str) -> WorkerSpec:
    model = changed(FAKE, engine="model", device=device)
    return WorkerSpec(worker_id="w", epoch=1, roles=roles, model=model, routers=())


@pytest.mark.parametrize("device", ["auto", "cuda", "cpu"])
@pytest.mark.parametrize("roles", [("prefill", "decode"), ("decode",), ("prefill",)])
def test_a_worker_computes_where_it_was_told_to_whatever_its_roles(
    device: str, roles: tuple[str, ...]
) -> None:
    assert on_device(worker_on(device, *roles)).config.device == device


def test_posts_of_a_gpu_are_as_large_as_its_rate_asks_for() -> None:
    usual, gpu = (
        prefill_config(worker_on("cuda", "prefill"), on_gpu=on_gpu).sender
        for on_gpu in (False, True)
    )
    assert gpu.post_bytes > usual.post_bytes
    assert gpu.window_bytes > gpu.post_bytes
    assert (gpu.lease, gpu.stuck_after_s) == (usual.lease, usual.stuck_after_s)


async def test_a_transport_that_is_for_gpus_alone_is_refused_for_pages_of_a_cpu() -> None:
    spec = replace(
        worker_on("cpu", "prefill"), model=FAKE, settings=WorkerSettings(transports=("cuda_ipc",))
    )
    with pytest.raises(StartError, match="cuda_ipc is not for pages of a CPU"):
        async with serving(spec):
            pass


def test_ranks_share_gpus_where_the_topology_gave_them_one_twice() -> None:
    several = changed(FAKE, engine="model", device="cuda", tensor_parallel=2)
    worker = replace(worker_on("cuda", "decode"), model=several)
    assert on_device(worker) == several
    assert on_device(replace(worker, devices=("a", "b"))) == several
    assert on_device(replace(worker, devices=("a", "a"))).config.share_gpus


def test_a_fake_engine_has_no_ranks() -> None:
    with pytest.raises(ValueError, match="a fake engine has no ranks"):
        changed(FAKE, tensor_parallel=2)


async def test_a_worker_whose_ranks_pages_are_out_of_reach_has_both_roles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OpenedEngine, "pages", None)
    power = OpenedEngine(FakeEngine(), on_gpu=True, memory=None)
    made: tuple[Any, ...] = (None, PeerDialer(Credentials()), {}, WorkerMetrics())
    with pytest.raises(StartError, match="a decode worker moves pages, and the cards of its ranks"):
        build_worker(worker_on("cuda", "decode"), power, *made)
    assert build_worker(worker_on("cuda", "prefill", "decode"), power, *made)


def test_a_model_that_does_not_divide_over_its_ranks_says_why() -> None:
    odd = changed(FAKE, engine="model", device="cpu", tensor_parallel=3)
    with (
        pytest.raises(StartError, match="4 attention heads do not divide over 3 ranks"),
        open_engine(odd, name="w", is_shared=True),
    ):
        pass


def test_more_rows_than_the_engine_takes_are_refused_at_the_start() -> None:
    engine = replace(FakeEngine().spec, max_step_rows=100)
    check_rows(StepLimits(decode_rows=99), engine)
    with pytest.raises(StartError, match=r"decode_rows is 100; .* at most 99 beside a prompt"):
        check_rows(StepLimits(decode_rows=100), engine)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("it is there")
    gpu = changed(FAKE, engine="model", device="cuda")
    with (
        pytest.raises(StartError, match="no CUDA device"),
        open_engine(gpu, name="w", is_shared=False),
    ):
        pass


def test_how_long_a_step_may_take_follows_suspicion_and_gpus_may_build_kernels() -> None:
    assert step_watch_config(TimingSpec()) == StepWatchConfig()
    assert step_watch_config(TimingSpec(suspicion_s=6.0)).late_s == 2 * StepWatchConfig().late_s
    assert step_watch_config(TimingSpec(suspicion_s=0.3, heartbeat_s=0.1)).late_s == 2.0
    assert step_watch_config(TimingSpec(), on_gpu=True).first_late_s == 60.0
    patient = step_watch_config(TimingSpec(suspicion_s=600.0))
    assert patient.late_s == patient.first_late_s == 1000.0


def test_a_fake_engine_names_the_field_that_its_model_lacks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 300}')
    fake = changed(FAKE, model_dir=tmp_path)
    with (
        pytest.raises(StartError, match=r"config\.json: max_position_embeddings is None"),
        open_engine(fake, name="w", is_shared=False),
    ):
        pass
