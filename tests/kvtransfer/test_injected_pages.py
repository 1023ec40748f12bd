"""Thousands of stale and corrupt pages between pools of the device double: none is decoded."""

from __future__ import annotations

import pytest

from tests.kvtransfer.injection import Injection
from twolane.kvtransfer.receive.grant import InGrant

EVERY = ["cuda_ipc", "shm", "unix", "tcp", "nixl"]


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("n_pages", "page_bytes"),
    [(2_000, 4096), pytest.param(100_000, 4096, marks=pytest.mark.soak)],
)
@pytest.mark.parametrize("transport", EVERY)
def test_no_injected_page_is_decoded(transport: str, n_pages: int, page_bytes: int) -> None:
    if transport == "nixl":
        pytest.importorskip("nixl_cu13", reason="nixl-cu13 is not installed")
    injection = Injection("double", transport, row_pages=128, page_bytes=page_bytes)
    tally = injection.run(n_pages)
    print(tally)
    tally.check(injection.kinds)
    assert tally.n_injected >= n_pages
    injection.close()


@pytest.mark.parametrize("transport", ["cuda_ipc", "nixl"])  # by copy streams, and by agents
def test_a_receiver_that_compares_no_sums_takes_them(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tests above would prove nothing."""
    if transport == "nixl":
        pytest.importorskip("nixl_cu13", reason="nixl-cu13 is not installed")
    believe = InGrant.verify

    def trust(self: InGrant, checked: object) -> bool:
        self._summed[:] = False
        return believe(self, checked)  # type: ignore[arg-type]

    monkeypatch.setattr(InGrant, "verify", trust)
    injection = Injection("double", transport, row_pages=16, page_bytes=4096)
    with pytest.raises(AssertionError, match="wrong pages have landed"):
        injection.run(1)
