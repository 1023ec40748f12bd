"""What routers of other versions write into the store ends none of this version."""

import logging
from collections.abc import Sequence

import pytest

from tests.redis_servers import RedisServer
from tests.router.shared.conftest import MakeStore
from tests.until import until
from twolane.router.shared import commands
from twolane.router.store import RouterRecord
from twolane.rpc.log_rate import LogRate


def test_of_a_record_only_the_known_fields_are_taken() -> None:
    newer = [b"router_id", b"a", b"epoch", b"1f", b"endpoint", b"h:1", b"new", b"\xff"]
    assert list(commands.routers([newer])) == [
        RouterRecord(router_id="a", epoch=0x1F, endpoint="h:1")
    ]


def test_a_record_that_cannot_be_read_is_skipped_and_logged_at_a_limited_rate(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_log_rate", LogRate())
    bad = [
        [b"router_id", b"a"],
        [b"epoch", b"1"],
        [b"router_id", b"a", b"epoch", b"soon"],
        [b"router_id", b"\xff", b"epoch", b"1"],
        [],
    ]
    good = [b"router_id", b"b", b"epoch", b"2"]
    with caplog.at_level(logging.WARNING):
        assert [record.name for record in commands.routers([*bad, good])] == ["b.2"]
    assert len(caplog.records) == 1


async def test_notes_of_prefixes_that_cannot_be_read_are_skipped(
    server: RedisServer, store_of: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    place, names = "{tw:default}:aff", b"\1" + bytes(7)
    for fields in (
        ("by", "x", "names", names),
        ("by", "x", "epoch", "1"),
        ("by", "x", "epoch", "1", "names", b"\1\2\3"),
        ("by", "x", "epoch", "soon", "names", names),
        ("by", "x", "epoch", "a", "names", names, "new", b"\xff"),
    ):
        server.command("XADD", place, "*", *fields)
    heard: list[tuple[list[int], int]] = []

    def sink(hashes: Sequence[int], epoch: int) -> None:
        heard.append((list(hashes), epoch))

    with caplog.at_level(logging.WARNING):
        store = await store_of("a", server.url)
        store.listen(sink)
        await until(lambda: heard, "the readable one is heard")
    assert heard == [([1], 10)]
    assert len([its for its in caplog.records if "prefixes" in its.message]) == 1
