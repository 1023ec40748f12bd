"""Builds a router's configuration from its spec and from the descriptors its process may open."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from twolane.deploy.process.descriptors import Shares
from twolane.deploy.process.overrides import with_given
from twolane.deploy.spec.settings import AUTO, NONE
from twolane.deploy.spec.specs import RouterSpec, new_epoch
from twolane.router.config import (
    AdmissionConfig,
    GrpcDoorConfig,
    HttpConfig,
    LimitsConfig,
    MembershipConfig,
    RouterConfig,
)
from twolane.router.shared.address import parse_address
from twolane.router.shared.config import StoreConfig
from twolane.router.text.model_defaults import FILE, NO_DEFAULTS, ModelDefaults, read_defaults
from twolane.router.text.model_files import ModelFilesError

log = logging.getLogger(__name__)


def router_config(spec: RouterSpec) -> RouterConfig:
    """Raises `ModelFilesError` for a generation_config.json that cannot be used."""
    timing, settings, defaults = spec.timing, spec.settings, _defaults(spec)
    if defaults != NO_DEFAULTS:
        said = {**defaults.sampling, "max_new_tokens": defaults.max_tokens}
        words = ", ".join(f"{name} {value}" for name, value in said.items() if value is not None)
        log.info("requests for %s that say nothing else take %s", spec.model.name, words)
    return RouterConfig(
        router_id=spec.router_id,
        epoch=new_epoch(),
        models=(spec.model.name,),
        defaults={spec.model.name: defaults},
        limits=with_given(
            LimitsConfig(),
            prompt_tokens=settings.max_prompt_tokens,
            max_tokens=settings.max_output_tokens,
        ),
        membership=MembershipConfig(
            announce_interval_s=timing.heartbeat_s,
            heartbeat_s=timing.heartbeat_s,
            suspicion_s=timing.suspicion_s,
        ),
        admission=with_given(
            AdmissionConfig(),
            max_queued=settings.max_queued,
            growth_reserve_tokens=settings.growth_tokens,
            beside_rows_s=settings.beside_rows_s,
        ),
    )


def store_config(spec: RouterSpec) -> StoreConfig | None:
    """None: it shares nothing with other routers."""
    url = spec.settings.store
    if url is None:
        return None
    return StoreConfig(address=parse_address(url), cluster=spec.settings.store_cluster)


def _defaults(spec: RouterSpec) -> ModelDefaults:
    """The defaults in the generation_config.json that the spec selects. The model's own file may be
    absent; a directory that was named must have one, else `ModelFilesError`."""
    chosen = spec.settings.generation_config
    if chosen == NONE:
        return NO_DEFAULTS
    if chosen == AUTO:
        return read_defaults(spec.model.model_dir)
    directory = Path(chosen).expanduser()
    if not (directory / FILE).is_file():
        raise ModelFilesError(
            f"--generation-config {chosen}: there is no {directory / FILE}; it is auto, none, or a "
            "directory with such a file"
        )
    return read_defaults(directory)


def grpc_door_config(shares: Shares) -> GrpcDoorConfig:
    usual = GrpcDoorConfig()
    return replace(usual, connections=min(usual.connections, shares.grpc))


def http_config(spec: RouterSpec, shares: Shares) -> HttpConfig | None:
    """None if the HTTP door is switched off."""
    port = spec.settings.http_door
    if port is None:
        return None
    usual = HttpConfig(port=port)
    return replace(usual, connections=min(usual.connections, shares.http))
