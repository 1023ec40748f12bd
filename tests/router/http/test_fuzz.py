"""Requests changed at random, head and body, in parts of random sizes: each is answered, or its
connection closed, in time, and nothing of it is left or in the log."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from typing import Any

import pytest

from tests.router.freed import until_free
from tests.router.http.asking import PATH, http_cluster
from tests.router.http.raw import connect, request
from twolane.router.config import HttpConfig, ServerConfig
from twolane.router.doors.server import RouterServer

FIELDS: dict[str, Any] = {
    "prompt": [1, 2], "max_tokens": 2, "temperature": 0.5, "seed": 7, "stop_token_ids": [3],
    "logit_bias": {"5": 1.0}, "stream": False, "timeout_s": 5, "logprobs": 2,
}  # fmt: skip
JUNK = [
    b"\r\n\r\n", b"\r\n", b"\n", b"\0", b": ", b"Content-Length: 5\r\n", b"HTTP/2.0", b"\xff\xfe",
    b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"1e999", b"\\ud800", b"[" * 99,
    b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"GET / HTTP/1.1\r\n\r\n", b"9" * 50, b"NaN",
]  # fmt: skip
EXPECTED = {
    "closed", "100", "200", "400", "403", "404", "405", "408", "413", "415", "417", "431", "501",
    "503", "504", "505",
}  # fmt: skip
PLACE = ServerConfig(
    stop_grace_s=0.2,
    metrics_port=None,
    http=HttpConfig(head_timeout_s=1.0, body_timeout_s=1.0, keep_alive_s=1.0),
)


def changed(rng: random.Random) -> bytes:
    raw = bytearray(request(FIELDS))
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(raw))
        what = rng.randrange(4)
        if what == 0:
            raw[at] = rng.randrange(256)
        elif what == 1:
            del raw[at : at + rng.randrange(1, 9)]
        elif what == 2:
            raw[at:at] = rng.choice(JUNK)
        else:
            raw[at:at] = raw[rng.randrange(len(raw)) :][: rng.randrange(1, 99)]
    return bytes(raw)


async def outcome(server: RouterServer, raw_bytes: bytes, rng: random.Random) -> str:
    raw = await connect(server)
    while raw_bytes:
        n_bytes = rng.choice([len(raw_bytes), 1, 7, 100, 400])
        raw.send(raw_bytes[:n_bytes])
        raw_bytes = raw_bytes[n_bytes:]
        await asyncio.sleep(0)
    try:
        async with asyncio.timeout(30.0):
            first = await raw.reader.readline()
            return first.split()[1].decode() if first else "closed"
    except ConnectionError:
        return "closed"
    finally:
        raw.close()


def is_of_a_stall(text: str) -> bool:
    """Whether a router says it when the machine has stalled: of itself, or of a worker."""
    return "this router has not run for" in text or "is suspect: not heard for" in text


async def fuzz(n_requests: int, caplog: pytest.LogCaptureFixture) -> None:
    rng, outcomes = random.Random(11), Counter[str]()
    async with http_cluster(server_config=PLACE) as (client, server, cluster):
        assert (await client.post(PATH, json={"prompt": [1], "max_tokens": 1})).status_code == 200
        caplog.clear()  # of the start, which a stall of the machine may have made harder
        for _ in range(n_requests // 100):
            many = [outcome(server, changed(rng), rng) for _ in range(100)]
            outcomes.update(await asyncio.gather(*many))
        assert set(outcomes) <= EXPECTED, outcomes
        assert outcomes["400"] > n_requests / 4, outcomes
        assert (await client.post(PATH, json={"prompt": [1], "max_tokens": 1})).status_code == 200
        await until_free(server, cluster, within_s=10.0)
        bad = [its.getMessage() for its in caplog.records if its.levelno >= logging.WARNING]
        assert [text for text in bad if not is_of_a_stall(text)] == []


async def test_hundreds_of_changed_requests_are_answered_or_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await fuzz(200, caplog)


@pytest.mark.soak
async def test_thousands_of_changed_requests_are_answered_or_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await fuzz(5_000, caplog)
