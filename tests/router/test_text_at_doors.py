"""Chosen answers of every kind of tokenizer through both doors: by the SDK, and by HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.router.http.asking import PATH, events, http_cluster
from tests.router.tokenizer_kinds import KINDS, random_texts, write_tokenizer
from twolane.aclient import AsyncClient
from twolane.router.text.codec import TextCodec

HARD = ["👍👍", "你好，世界！", "👋🏽!\nNext", "한국어 “ok”…"]
QUICK: dict[str, Any] = {"prefill_s": 0.0, "transfer_s": 0.0, "step_s": 0.0, "echoes": True}


@pytest.mark.parametrize("kind", KINDS)
async def test_both_doors_stream_the_text_that_the_tokens_decode_to(
    kind: str, tmp_path: Path
) -> None:
    tokenizer = write_tokenizer(tmp_path, kind)
    text = TextCodec.load(tmp_path)
    async with (
        http_cluster(text=text, **QUICK) as (http, server, _),
        AsyncClient(server.address) as client,
    ):
        for answer in [*HARD, *random_texts(12, seed=3)]:
            # an answer is the prompt again, so what comes before it is the same
            ids = tokenizer.encode(answer, add_special_tokens=False).ids
            before = tokenizer.decode(ids)
            expected = tokenizer.decode(ids + ids)[len(before) :]
            asked: dict[str, Any] = {"max_tokens": len(ids)}
            stream = client.stream(token_ids=ids, **asked)
            assert "".join([chunk.text async for chunk in stream]) == expected
            *chunks, _ = await events(http, prompt=ids, **asked)
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
            whole = (await http.post(PATH, json={"prompt": ids, **asked})).json()
            assert whole["choices"][0]["text"] == expected
            stop = expected[len(expected) // 2 :][:3]
            if stop:
                stopped = await client.generate(token_ids=ids, stop=stop, **asked)
                assert stopped.text == expected[: expected.index(stop)]
                assert stopped.finish_reason == "stop"
