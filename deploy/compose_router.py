"""A router's configuration from its spec."""

from __future__ import annotations

from deploy.given import with_given
from deploy.spec import RouterSpec
from router.config import AdmissionConfig, MembershipConfig, RouterConfig
from router.limits import LimitsConfig


def router_config(spec: RouterSpec) -> RouterConfig:
    timing, limits = spec.timing, spec.limits
    return RouterConfig(
        router_id=spec.router_id,
        models=(spec.model.name,),
        limits=with_given(
            LimitsConfig(),
            prompt_tokens=limits.max_prompt_tokens,
            max_tokens=limits.max_output_tokens,
        ),
        membership=MembershipConfig(
            announce_interval_s=timing.heartbeat_s,
            heartbeat_s=timing.heartbeat_s,
            suspicion_s=timing.suspicion_s,
        ),
        admission=with_given(
            AdmissionConfig(),
            max_queued=limits.max_queued,
            growth_reserve_tokens=limits.growth_tokens,
        ),
    )
