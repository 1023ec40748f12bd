"""How long until a quota is whole again, as clients of OpenAI's API parse it."""

from __future__ import annotations

import pytest

from twolane.router.doors.http.rate_limits import rate_limit_headers
from twolane.router.tenants.accounts import Level


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.02, "20ms"),
        (0.9996, "1s"),
        (1.5, "1.5s"),
        (59.97, "1m0s"),
        (119.7, "2m0s"),
        (360, "6m0s"),
    ],
)
def test_spans_have_no_sixtieth_second(seconds: float, shown: str) -> None:
    headers = rate_limit_headers([Level("tokens", 10, 1, seconds)])
    assert headers["x-ratelimit-reset-tokens"] == shown
