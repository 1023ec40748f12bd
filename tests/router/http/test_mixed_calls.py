"""Calls of all kinds at once, some left early: every answer is right, and nothing stays."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import httpx2

from tests.router.freed import until_free
from tests.router.http.asking import CHAT_PATH, PATH, decoded, http_cluster
from twolane.router.testing.rows import expected_answer
from twolane.router.text.codec import TextCodec

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
N_CALLS = 80


async def test_calls_of_all_kinds_some_left_early_leave_nothing_behind(codec: TextCodec) -> None:
    rng = random.Random(6)
    async with http_cluster(text=codec, prefill_s=0.002, step_s=0.02) as (client, server, cluster):
        whole = await client.post(CHAT_PATH, json={**HELLO, "max_tokens": 12, "temperature": 0})
        expected_chat = whole.json()["choices"][0]["message"]["content"]
        ended: Counter[str] = Counter()

        async def call() -> None:
            kind = rng.choice([*calls])
            stream, leaves = rng.random() < 0.6, rng.random() < 0.4
            n = 1900 if leaves else 12
            await asyncio.sleep(rng.random() * 0.3)
            try:
                async with asyncio.timeout(rng.random() * 0.05 if leaves else None):
                    await calls[kind](n, stream)
            except TimeoutError:
                kind = "left"
            ended[kind] += 1

        async def prompts(n: int, stream: bool) -> None:
            given = [[rng.randrange(1, 900) for _ in range(3)] for _ in range(rng.randint(1, 4))]
            asked = {"prompt": given, "max_tokens": n, "temperature": 0, "return_token_ids": True}
            got: list[list[int]] = [[] for _ in given]
            for choice in await choices(client, PATH, {**asked, "stream": stream}):
                got[choice["index"]] += choice["token_ids"]
            assert got == [expected_answer(prompt, n) for prompt in given]

        async def talk(n: int, stream: bool) -> None:
            asked = {**HELLO, "max_tokens": n, "temperature": 0, "stream": stream}
            parts = [
                (choice.get("message") or choice["delta"]).get("content", "")
                for choice in await choices(client, CHAT_PATH, asked)
            ]
            assert "".join(parts) == expected_chat

        async def bad(n: int, stream: bool) -> None:
            asked = {"prompt": [[1], [2, 1000], [3]], "max_tokens": n, "stream": stream}
            response = await client.post(PATH, json=asked)
            assert response.json()["error"]["param"] == "prompt[1]"

        calls: dict[str, Any] = {"prompts": prompts, "chat": talk, "bad": bad}
        await asyncio.gather(*(call() for _ in range(N_CALLS)))
        assert all(ended[kind] for kind in (*calls, "left")), ended
        await until_free(server, cluster)  # those that were left would go on for 38 s
        server.router.check_integrity()


async def choices(
    client: httpx2.AsyncClient, path: str, asked: dict[str, Any]
) -> list[dict[str, Any]]:
    """All there were, of the whole answer or of its chunks."""
    response = await client.post(path, json=asked)
    assert response.status_code == 200, response.text
    if not asked["stream"]:
        return list(response.json()["choices"])
    *chunks, done = [decoded(line) for line in response.text.split("\n\n") if line]
    assert done == "[DONE]"
    return [choice for chunk in chunks for choice in chunk["choices"]]
