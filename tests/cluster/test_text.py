"""Chosen answers of every kind of tokenizer through real clusters: by the SDK, and by HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tokenizers import Tokenizer

from tests.router.tokenizer_kinds import KINDS, random_texts, write_tokenizer
from twolane.testing.local import LocalCluster, start_local


def expected_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Of an answer that is the prompt again."""
    before: str = tokenizer.decode(ids)
    both: str = tokenizer.decode(ids + ids)
    return both[len(before) :]


def streamed_by_http(http: httpx2.Client, **asked: Any) -> str:
    with http.stream("POST", "/v1/completions", json={"stream": True, **asked}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


def check(cluster: LocalCluster, tokenizer: Tokenizer, texts: list[str]) -> None:
    with (
        cluster.client() as client,
        httpx2.Client(base_url=f"http://{cluster.http_endpoint}", timeout=60.0) as http,
    ):
        for text in filter(None, texts):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            expected = expected_text(tokenizer, ids)
            with client.stream(token_ids=ids, max_tokens=len(ids)) as stream:
                assert "".join(chunk.text for chunk in stream) == expected, text
            assert streamed_by_http(http, prompt=ids, max_tokens=len(ids)) == expected, text
            stop = expected[len(expected) // 2 :][:3]
            if stop:
                stopped = client.generate(token_ids=ids, max_tokens=len(ids), stop=stop)
                assert stopped.text == expected[: expected.index(stop)], (text, stop)


def write_model(directory: Path, kind: str) -> Tokenizer:
    tokenizer = write_tokenizer(directory, kind)
    facts = {
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": 4096,
        "echoes": True,  # the fake engine's answers
    }
    (directory / "config.json").write_text(json.dumps(facts))
    return tokenizer


def test_text_spelled_in_bytes_comes_whole_through_a_cluster(tmp_path: Path) -> None:
    tokenizer = write_model(tmp_path, "llama2")
    with start_local(engine="fake", model=tmp_path) as cluster:
        check(cluster, tokenizer, ["👍👍", "你好", "👋🏽!\nNext", *random_texts(20, seed=5)])


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_two_thousand_texts_of_each_kind_come_whole_through_a_cluster(
    kind: str, tmp_path: Path
) -> None:
    tokenizer = write_model(tmp_path, kind)
    with start_local(engine="fake", model=tmp_path) as cluster:
        check(cluster, tokenizer, random_texts(2000, seed=6))
