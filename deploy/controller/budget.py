"""How many workers of each pool one budget of GPUs allows."""

from __future__ import annotations

from collections.abc import Mapping

from twolane.deploy.controller.limits import Limits
from twolane.deploy.controller.observation import Need, Role


def share_budget(
    needs: Mapping[Role, Need], limits: Limits, pins: Mapping[Role, int]
) -> dict[Role, int]:
    """Workers per pool: what is needed, or, where that is beyond the budget, both pools filled to
    an equal level: the next worker goes to the pool with the lower ratio of workers to busy ones.

        prefill   busy 6   ████████░░      budget 12, one GPU each, both need 10
        decode    busy 3   ████░░░░░░

    Busy are those that what comes now would take if they had no time to spare. What a backlog, a
    burst to come or short queues would need does not take from a pool what it has work for.

    Never below a pool's minimum or above its maximum. A pinned pool gets its pin first.
    """
    wanted = {role: pins.get(role, limits.pools[role].within(needs[role].workers)) for role in Role}
    got = {role: pins.get(role, limits.pools[role].minimum) for role in Role}
    left = limits.budget_gpus - sum(got[role] * limits.pools[role].gpus for role in Role)
    while True:
        short = [
            role for role in Role if got[role] < wanted[role] and limits.pools[role].gpus <= left
        ]
        if not short:
            return got
        lowest = min(short, key=lambda role: (got[role] / max(needs[role].busy, 1e-9), role))
        got[lowest] += 1
        left -= limits.pools[lowest].gpus
