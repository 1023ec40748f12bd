"""What is left of a tenant's quotas, in the headers of OpenAI's API.

x-ratelimit-limit-tokens: 60000
x-ratelimit-remaining-tokens: 58312
x-ratelimit-reset-tokens: 1.7s          until all of it is available again
"""

from __future__ import annotations

from collections.abc import Iterable

from twolane.router.tenants.accounts import Level

_SHOWN = frozenset({"requests", "tokens"})
_MOST_S = 1e9  # shown


def rate_limit_headers(levels: Iterable[Level]) -> dict[str, str]:
    """The headers of the tenant's quotas."""
    headers = {}
    for level in levels:
        if level.name in _SHOWN:
            headers[f"x-ratelimit-limit-{level.name}"] = str(int(level.limit))
            headers[f"x-ratelimit-remaining-{level.name}"] = str(max(0, int(level.remaining)))
            headers[f"x-ratelimit-reset-{level.name}"] = _span(level.reset_s)
    return headers


def _span(seconds: float) -> str:
    """`6m0s`, `1.5s`, `20ms`, as OpenAI writes them."""
    seconds = min(seconds, _MOST_S)
    if (ms := round(seconds * 1000)) < 1000:
        return f"{ms}ms"
    if (tenths := round(seconds * 10)) < 600:
        return f"{tenths / 10:g}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s"
