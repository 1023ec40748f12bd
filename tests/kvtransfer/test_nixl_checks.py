"""What a landing of NIXL says of pages that it is to check."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kvtransfer.device_pair import DevicePair, device_pair, is_given, wait_until
from tests.kvtransfer.nixl_marks import needs_nixl
from twolane.kvtransfer.transport import Checked

pytestmark = needs_nixl


@pytest.fixture
def pair() -> Iterator[DevicePair]:
    with device_pair("nixl") as made:
        yield made


def test_checked_says_nothing_of_a_sender_that_never_came(pair: DevicePair) -> None:
    pair.grant(1, 3)
    pair.landing.check(1, 0, 1)
    assert pair.into.hears_nothing()
    assert not any(isinstance(event, Checked) for event in pair.into.news)


def test_pages_of_a_sender_that_has_hung_up_are_still_checked(pair: DevicePair) -> None:
    """It may have written all of them."""
    pair.grant(1, 3)
    pair.post(1, 1, [9], [3])
    (posted,) = pair.out.wait_for(1)
    pair.outlet.close()
    wait_until(lambda: not pair.landing._listener.connections)  # type: ignore[attr-defined]
    pair.landing.check(1, 0, 1)
    (checked,) = pair.into.wait_for(1)
    assert checked.checksums.tolist() == posted.checksums.tolist()


def test_pages_are_checked_when_the_device_has_added_them_up(pair: DevicePair) -> None:
    pair.grant(1, 3)
    pair.post(1, 1, [9], [3])
    (posted,) = pair.out.wait_for(1)
    pair.d.stall()
    pair.landing.check(1, 0, 1)
    wait_until(lambda: is_given(pair.d))
    assert pair.into.hears_nothing()
    pair.d.resume()
    (checked,) = pair.into.wait_for(1)
    assert checked.checksums.tolist() == posted.checksums.tolist()
