"""The router refuses a worker of another host that it could not dial back."""

from __future__ import annotations

import pytest

from twolane.errors import InvalidRequestError
from twolane.router.doors.worker_door import check_endpoint


@pytest.mark.parametrize(
    ("endpoint", "caller"),
    [
        ("127.0.0.1:7300", "ipv4:10.77.0.12:4711"),
        ("0.0.0.0:7300", "ipv4:10.77.0.12:4711"),
        ("[::1]:7300", "ipv6:%5Bfd00::12%5D:4711"),
        ("localhost:7300", "ipv4:10.77.0.12:4711"),
    ],
)
def test_a_worker_of_another_host_that_announces_an_address_of_its_own_is_refused(
    endpoint: str, caller: str
) -> None:
    with pytest.raises(InvalidRequestError, match="set its advertise_host") as caught:
        check_endpoint(endpoint, caller)
    assert caught.value.field == "worker.endpoint"


@pytest.mark.parametrize(
    ("endpoint", "caller"),
    [
        ("127.0.0.1:7300", "ipv4:127.0.0.1:4711"),
        ("[::1]:7300", "ipv6:%5B::1%5D:4711"),
        ("10.77.0.12:7300", "ipv4:10.77.0.12:4711"),
        ("127.0.0.1:7300", "unix:"),
    ],
)
def test_a_worker_that_can_be_dialled_is_taken(endpoint: str, caller: str) -> None:
    check_endpoint(endpoint, caller)
