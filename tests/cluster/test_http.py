"""OpenAI's own client, and bare sockets, at the completions of a real cluster."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from tests.cluster.real_cluster import settled
from twolane.testing.local import LocalCluster, start_local

PROMPT = "Once upon a time"
OPTIONS: dict[str, Any] = {"max_tokens": 40, "seed": 11, "temperature": 0.8}
LONG: dict[str, Any] = {"max_tokens": 1900, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with start_local(prefill=1, decode=1) as started:
        yield started


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[openai.OpenAI]:
    base_url = f"http://{cluster.http_endpoint}/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    (served,) = client.models.list()
    assert client.models.retrieve(served.id) == served
    return served.id


def test_text_tokens_and_counts_are_those_of_grpc_for_the_same_seed(
    cluster: LocalCluster, client: openai.OpenAI, model: str
) -> None:
    with cluster.client() as ours:
        expected = ours.generate(PROMPT, **OPTIONS)
    extra = {"return_token_ids": True}
    whole = client.completions.create(model=model, prompt=PROMPT, extra_body=extra, **OPTIONS)
    (choice,) = whole.choices
    assert choice.text == expected.text
    assert choice.model_extra is not None
    assert choice.model_extra["token_ids"] == list(expected.token_ids)
    assert choice.finish_reason == expected.finish_reason
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == expected.ledger.prompt_tokens
    assert whole.usage.completion_tokens == len(expected.tokens)

    with client.completions.create(
        model=model,
        prompt=PROMPT,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=extra,
        **OPTIONS,
    ) as stream:
        *chunks, last = stream
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected.text
    assert chunks[-1].choices[0].finish_reason == expected.finish_reason
    assert last.usage is not None
    assert last.usage.completion_tokens == len(expected.tokens)


def test_a_prompt_of_token_ids_is_answered_as_over_grpc(
    cluster: LocalCluster, client: openai.OpenAI, model: str
) -> None:
    ids = [5, 60, 7, 80, 9]
    with cluster.client() as ours:
        expected = ours.generate(token_ids=ids, **OPTIONS)
    answer = client.completions.create(model=model, prompt=ids, **OPTIONS)
    assert answer.choices[0].text == expected.text


def test_a_stop_string_ends_the_answer_and_frees_its_pages(
    cluster: LocalCluster, client: openai.OpenAI, model: str
) -> None:
    text = client.completions.create(model=model, prompt=PROMPT, **OPTIONS).choices[0].text
    stop = text[20:24]
    (choice,) = client.completions.create(
        model=model, prompt=PROMPT, stop=stop, **{**OPTIONS, "max_tokens": 400}
    ).choices
    assert (choice.text, choice.finish_reason) == (text[: text.find(stop)], "stop")
    asyncio.run(settled(cluster, n_workers=2, within_s=1.0))


def test_log_probabilities_are_those_of_grpc(
    cluster: LocalCluster, client: openai.OpenAI, model: str
) -> None:
    with cluster.client() as ours:
        expected = ours.generate(PROMPT, max_tokens=5, temperature=0, top_logprobs=3)
    answer = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=5, temperature=0, logprobs=3
    )
    shown = answer.choices[0].logprobs
    assert shown is not None
    assert shown.token_logprobs == [token.logprob for token in expected.tokens]
    assert shown.tokens is not None
    assert "".join(shown.tokens) == expected.text
    for likeliest, token in zip(shown.top_logprobs or (), expected.tokens, strict=True):
        assert sorted(likeliest.values()) == sorted(top.logprob for top in token.top_logprobs)


def test_errors_are_those_that_openais_client_knows(client: openai.OpenAI, model: str) -> None:
    create = client.completions.create
    with pytest.raises(openai.NotFoundError) as unknown:
        create(model="nope", prompt=PROMPT)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as several:
        create(model=model, prompt=PROMPT, n=2)
    assert several.value.param == "n"
    with pytest.raises(openai.BadRequestError) as long:
        create(model=model, prompt=[1] * 100_000)
    assert long.value.param == "prompt"
    with pytest.raises(openai.APIStatusError) as large:
        create(model=model, prompt="x" * 5_000_000)
    assert large.value.status_code == 413
    with pytest.raises(openai.InternalServerError) as late:
        create(model=model, prompt=PROMPT, extra_body={**LONG, "timeout_s": 0.3})
    assert late.value.status_code == 504


async def test_a_full_cluster_refuses_with_429_and_serves_those_it_took() -> None:
    with start_local(engine="fake", colocated=1, decode_rows=1, max_queued=1) as small:
        url = f"http://{small.http_endpoint}/v1/completions"
        short = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True}
        async with httpx2.AsyncClient(timeout=60) as http:
            answers = await asyncio.gather(*(http.post(url, json=short) for _ in range(16)))
        statuses = [answer.status_code for answer in answers]
        assert {*statuses} == {200, 429}
        for answer in answers:
            if answer.status_code == 429:
                assert int(answer.headers["retry-after"]) >= 1
            else:
                assert answer.json()["usage"]["completion_tokens"] == 400
        await settled(small, n_workers=1)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_reads_a_stream(cluster: LocalCluster) -> None:
    url = f"http://{cluster.http_endpoint}/v1/completions"
    body = json.dumps({"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "stream": True})
    command = ["curl", "-sN", url, "-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    *chunks, end = done.stdout.split("\n\n")[:-1]
    assert end == "data: [DONE]"
    texts = [json.loads(chunk.removeprefix("data: "))["choices"][0]["text"] for chunk in chunks]
    with cluster.client() as ours:
        assert "".join(texts) == ours.generate(PROMPT, max_tokens=5, temperature=0).text
