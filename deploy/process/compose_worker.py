"""Builds a worker from its spec: the configs, and the objects that take them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace

from twolane.decode_worker.config import DecodeConfig
from twolane.decode_worker.role import DecodeRole
from twolane.deploy.errors import StartError
from twolane.deploy.process.engine_host import OpenedEngine
from twolane.deploy.process.overrides import with_given
from twolane.deploy.process.page_converters import page_converters_of
from twolane.deploy.spec.listeners import insecure_listeners
from twolane.deploy.spec.page_rules import page_lane_of, unprotected
from twolane.deploy.spec.settings import DECODE, PREFILL, TimingSpec, WorkerSettings
from twolane.deploy.spec.specs import ModelSpec, WorkerSpec
from twolane.engine.step import EngineSpec
from twolane.kvtransfer.config import MIB, LeaseConfig, ReceiverConfig, SenderConfig
from twolane.kvtransfer.link.done_socket import DoneSocket
from twolane.kvtransfer.transport import Landing
from twolane.kvtransfer.transports.registry import AnyPool, OutletOpener, TransportConfig
from twolane.prefill_worker.batching import BatchingConfig
from twolane.prefill_worker.config import PrefillConfig
from twolane.prefill_worker.role import PrefillRole
from twolane.rpc.listen import bare
from twolane.v1 import worker_pb2
from twolane.worker.config import SessionConfig, StepLimits, StepWatchConfig, WorkerConfig
from twolane.worker.context import WorkerContext
from twolane.worker.metrics import WorkerMetrics
from twolane.worker.peers.links import PeerDialer
from twolane.worker.peers.peers import Wiring
from twolane.worker.role import Roles
from twolane.worker.steps.step_runner import ThreadStepRunner
from twolane.worker.worker import Worker

# A current GPU prefills 2,048 tokens in 50 ms at nearly its peak rate, so no decode step waits
# longer.
GPU_STEP_LIMITS = StepLimits(step_tokens=2048, decode_rows=256)
_ROLES = {PREFILL: worker_pb2.ROLE_PREFILL, DECODE: worker_pb2.ROLE_DECODE}
_LEAST_REATTACH_S, _LEAST_LANDING_S, _LEAST_STUCK_S = 0.2, 0.5, 1.0
_LEAST_LATE_S, _GPU_FIRST_LATE_S = 2.0, 60.0


def build_worker(
    spec: WorkerSpec,
    power: OpenedEngine,
    pages: AnyPool | None,
    dialer: PeerDialer,
    landings: Mapping[str, Landing],
    metrics: WorkerMetrics,
) -> Worker:
    """Build a worker with the spec's roles on that engine and its `pages`; nothing is started.
    Raises `StartError` where the options contradict each other or what is installed."""
    config = worker_config(spec, on_gpu=power.on_gpu)
    check_rows(config.limits, power.engine.spec)
    context = WorkerContext(config, power.engine, epoch=spec.epoch)
    decode = prefill = None
    if DECODE in spec.able:
        decode = DecodeRole(context, DecodeConfig(receiver=receiver_config(spec.timing)))
    if PREFILL in spec.able:
        prefill = PrefillRole(context, prefill_config(spec, on_gpu=power.on_gpu), adopter=decode)
    if pages is None and len(spec.roles) == 1:
        raise StartError(
            f"a {spec.roles[0]} worker moves pages, and the cards of its ranks cannot reach each "
            "other's memory: take fewer GPUs a worker, or workers with both roles (colocated)"
        )
    layout = power.engine.spec.layout
    opener = OutletOpener(
        context.epoch,
        power.engine.pool if pages is None else pages,
        transport_config(spec),
        layout,
        page_converters_of(layout),
    )
    transports = opener.transports if pages is not None else ()
    if pages is not None and not transports:
        if "nixl" in spec.settings.transports:
            raise StartError("nixl is not installed: pip install 'twolane[nixl]'")
        raise StartError(f"{', '.join(spec.settings.transports)} is not for pages of a CPU")
    wire = Wiring(
        dial=dialer,
        open_outlet=opener,
        landings=landings,
        transports=transports,
        makes_dtypes=opener.makes_dtypes,
        memory=opener.memory,
        page_lane=opener.page_lane,
        trusted_fabric=spec.settings.trusted_fabric,
        done_socket=None if decode is None else DoneSocket(),
    )
    runner = ThreadStepRunner(power.engine)
    return Worker(
        config,
        context,
        Roles(decode, prefill),
        runner,
        wire,
        observer=metrics,
        offered=[_ROLES[role] for role in spec.roles],
    )


def on_device(spec: WorkerSpec) -> ModelSpec:
    """The model's spec. Ranks share GPUs where the spec names one more than once."""
    config = replace(spec.model.config, share_gpus=len({*spec.devices}) < len(spec.devices))
    return replace(spec.model, config=config)


def ready_limits(spec: WorkerSpec) -> StepLimits:
    """The largest step that a GPU worker will run and is warmed up for. A prefill worker decodes
    only rows whose prompt has one token left."""
    limits = step_limits(spec.settings, GPU_STEP_LIMITS)
    return limits if DECODE in spec.able else replace(limits, decode_rows=1)


def check_rows(limits: StepLimits, engine: EngineSpec) -> None:
    """Raise `StartError` if a step could have more rows than the engine takes."""
    if limits.decode_rows >= engine.max_step_rows:  # one is left for a prompt
        raise StartError(
            f"decode_rows is {limits.decode_rows}; this engine takes at most "
            f"{engine.max_step_rows - 1} beside a prompt"
        )


def worker_config(spec: WorkerSpec, *, on_gpu: bool = False) -> WorkerConfig:
    timing = spec.timing
    return WorkerConfig(
        worker_id=spec.worker_id,
        pool=spec.pool,
        devices=_devices(spec, on_gpu=on_gpu),
        host_name=spec.host_name or socket.gethostname(),
        bind_host=spec.bind_host,
        advertise_host=spec.advertise_host,
        ports=spec.ports,
        port=spec.port,
        metrics_host=spec.metrics_host,
        metrics_port=spec.metrics_port,
        metrics_ports=spec.settings.worker_metrics_ports,
        routers=spec.routers,
        credentials=spec.credentials,
        insecure_listeners=tuple(insecure_listeners(spec)),
        announce_every_s=timing.heartbeat_s,
        drain_for_s=timing.stop_grace_s,
        limits=step_limits(spec.settings, GPU_STEP_LIMITS if on_gpu else StepLimits()),
        step_watch=step_watch_config(timing, on_gpu=on_gpu),
        sessions=SessionConfig(
            load_every_s=timing.heartbeat_s,
            load_least_s=min(SessionConfig().load_least_s, timing.heartbeat_s),
            grace_s=timing.grace_s,
            tombstone_s=timing.lease_s,
            suspicion_s=timing.suspicion_s,
        ),
    )


def step_watch_config(timing: TimingSpec, *, on_gpu: bool = False) -> StepWatchConfig:
    """Step timeouts scale with the suspicion timeout. A GPU's kernels are compiled before it
    serves, except those of steps beyond the limits, so a first step of a kind has more time."""
    usual = StepWatchConfig()
    scale = timing.suspicion_s / TimingSpec().suspicion_s
    late_s = max(_LEAST_LATE_S, usual.late_s * scale)
    first_late_s = _GPU_FIRST_LATE_S if on_gpu else usual.first_late_s
    return replace(usual, late_s=late_s, first_late_s=max(late_s, first_late_s))


def _devices(spec: WorkerSpec, *, on_gpu: bool) -> tuple[str, ...]:
    """The device of each rank, for display."""
    each = spec.model.config.tensor_parallel
    return (spec.devices or ("cuda",) * each) if on_gpu else ("cpu",) * each


def step_limits(settings: WorkerSettings, usual: StepLimits) -> StepLimits:
    """The worker's step limits; options that are unset are taken from `usual`. If only
    `step_tokens` is set, decode rows take at most half of it. Raises `StartError` if no room is
    left for prefill."""
    step_tokens = settings.step_tokens or max(usual.step_tokens, 2 * (settings.decode_rows or 0))
    decode_rows = settings.decode_rows or min(usual.decode_rows, step_tokens // 2)
    if not 1 <= decode_rows < step_tokens:
        raise StartError(
            f"decode_rows is {decode_rows} and step_tokens {step_tokens}; a step must have room "
            "for one position of each row, and for prefill besides"
        )
    return StepLimits(step_tokens=step_tokens, decode_rows=decode_rows)


def prefill_config(spec: WorkerSpec, *, on_gpu: bool = False) -> PrefillConfig:
    settings = spec.settings
    batching = with_given(
        BatchingConfig(window_s=None) if settings.prefill_learns_window else BatchingConfig(),
        window_s=settings.prefill_window_s,
        watermark_rows=settings.prefill_watermark_rows,
    )
    sender = sender_config(spec.timing, on_gpu=on_gpu)
    config = PrefillConfig(batching=batching, sender=sender)
    return with_given(config, holding_cap_share=settings.holding_cap_share)


def sender_config(timing: TimingSpec, *, on_gpu: bool = False) -> SenderConfig:
    usual = SenderConfig()
    stuck_after_s = usual.stuck_after_s * timing.lease_s / usual.lease.lease_s
    config = replace(
        usual, lease=lease_config(timing), stuck_after_s=max(_LEAST_STUCK_S, stuck_after_s)
    )
    if on_gpu:  # over NVLink a post of the default size ends before it can be polled
        config = replace(config, window_bytes=512 * MIB, post_bytes=256 * MIB)
    return config


def receiver_config(timing: TimingSpec) -> ReceiverConfig:
    """Peer timeouts scale with the lease, as the defaults do, but have lower bounds so that a busy
    machine is not taken for a dead one in tests with short leases."""
    usual = ReceiverConfig()
    scale = timing.lease_s / usual.lease.lease_s
    return ReceiverConfig(
        lease=lease_config(timing),
        reattach_s=max(_LEAST_REATTACH_S, usual.reattach_s * scale),
        landing_timeout_s=max(_LEAST_LANDING_S, usual.landing_timeout_s * scale),
        fence_after_s=usual.fence_after_s * scale,
    )


def lease_config(timing: TimingSpec) -> LeaseConfig:
    """Heartbeats and retries happen at least a few times within a lease, however short it is."""
    return LeaseConfig(
        lease_s=timing.lease_s,
        heartbeat_s=min(timing.heartbeat_s, timing.lease_s / 3),
        retry_first_s=min(0.1, timing.lease_s / 10),
        retry_most_s=min(1.0, timing.lease_s / 3),
    )


def transport_config(spec: WorkerSpec) -> TransportConfig:
    """The transports' configuration. Raises `StartError` if others on the network could read or
    write pages."""
    settings = spec.settings
    _, why = unprotected(
        settings.transports,
        settings.page_lane,
        bare(spec.bind_host),
        trusted_fabric=settings.trusted_fabric,
        insecure=spec.insecure,
    )
    if why:
        raise StartError(why)
    config = TransportConfig(
        transports=settings.transports,
        bind_host=bare(spec.bind_host),
        advertise_host=bare(spec.advertise_host),
        ports=spec.ports,
        page_lane=page_lane_of(
            settings.page_lane,
            bare(spec.bind_host),
            has_tls=spec.tls is not None,
            insecure=spec.insecure,
        ),
        trusted_fabric=settings.trusted_fabric,
    )
    return with_given(config, checksums=settings.checksums, sockets=settings.sockets)
