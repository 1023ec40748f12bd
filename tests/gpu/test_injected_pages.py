"""A hundred thousand stale and corrupt pages on the way between pools of a card: none is decoded.

Expected on an H200: each within a minute, the quick ones in seconds.
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton")
pytest.importorskip("grpc")
pytest.importorskip("xxhash")

from tests.kvtransfer.injection import Injection

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("n_pages", [5_000, pytest.param(100_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("transport", "page_bytes"),
    [
        ("cuda_ipc", 4096), ("cuda_ipc", 65536), ("shm", 16384), ("unix", 4096), ("tcp", 65536),
        ("nixl", 16384),
    ],
)  # fmt: skip
def test_no_injected_page_is_decoded(
    transport: str, page_bytes: int, n_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if transport == "nixl":
        pytest.importorskip("nixl_cu13", reason="nixl-cu13 is not installed")
        monkeypatch.setenv("UCX_TLS", "tcp,cuda_copy")
    injection = Injection("cuda", transport, row_pages=256, page_bytes=page_bytes)
    tally = injection.run(n_pages)
    print(tally)
    tally.check(injection.kinds)
    assert tally.n_injected >= n_pages
    injection.close()
