"""OpenAI's own clients, for Python and for Node, and curl, at the chat of a real cluster."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.npm import npm_packages
from twolane.testing.local import LocalCluster, start_local

MESSAGES: Any = [{"role": "user", "content": "Tell me a story."}]
OPTIONS: dict[str, Any] = {"max_tokens": 24, "seed": 11, "temperature": 0.8}
LATE_S = (0.4, 0.8, 1.6, 3.2)
NPM = Path(__file__).parent / "openai_npm"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with start_local(prefill=1, decode=1) as started:
        yield started


@pytest.fixture(scope="module")
def base_url(cluster: LocalCluster) -> str:
    return f"http://{cluster.http_endpoint}/v1"


@pytest.fixture(scope="module")
def model(cluster: LocalCluster) -> str:
    with cluster.client() as ours:
        (served,) = ours.models()
    return served.name


@pytest.fixture(scope="module")
def expected(cluster: LocalCluster) -> Any:
    """The answer to MESSAGES over gRPC."""
    with cluster.client() as ours:
        return ours.generate(messages=MESSAGES, **OPTIONS)


def test_chat_by_the_python_client_is_grpcs(base_url: str, model: str, expected: Any) -> None:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        create = client.chat.completions.create
        whole = create(model=model, messages=MESSAGES, logprobs=True, top_logprobs=2, **OPTIONS)
        (choice,) = whole.choices
        assert choice.message.content == expected.text
        assert choice.finish_reason == expected.finish_reason
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == expected.ledger.prompt_tokens
        assert whole.usage.completion_tokens == len(expected.tokens)
        assert choice.logprobs is not None
        shown = choice.logprobs.content or []
        spelled = b"".join(bytes(token.bytes or ()) for token in shown)
        assert spelled.decode().removesuffix("<|end|>") == expected.text
        assert {len(token.top_logprobs) for token in shown} == {2}
        with create(model=model, messages=MESSAGES, stream=True, **OPTIONS) as stream:
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert "".join(pieces) == expected.text
        again = create(model=model, messages=[*MESSAGES, choice.message, *MESSAGES], **OPTIONS)
        assert again.usage is not None
        assert again.usage.prompt_tokens > whole.usage.total_tokens


async def test_chat_by_the_async_python_client_has_no_empty_first_chunk(
    base_url: str, model: str, expected: Any
) -> None:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        assert [served.id async for served in client.models.list()] == [model]
        create = client.chat.completions.create
        whole = await create(model=model, messages=MESSAGES, **OPTIONS)
        assert whole.choices[0].message.content == expected.text
        stream = await create(
            model=model,
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            **OPTIONS,
        )
        *chunks, last = [chunk async for chunk in stream]
        first = chunks[0].choices[0].delta
        assert first.role == "assistant"
        assert first.content
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == expected.text
        assert chunks[-1].choices[0].finish_reason == expected.finish_reason
        assert last.usage is not None
        assert last.usage.completion_tokens == len(expected.tokens)
        stop = expected.text[20:24]
        async with client.chat.completions.stream(
            model=model, messages=MESSAGES, stop=stop, **OPTIONS
        ) as gathering:
            gathered = await gathering.get_final_completion()
        (choice,) = gathered.choices
        assert choice.message.content == expected.text.partition(stop)[0]
        assert choice.finish_reason == "stop"


async def test_several_prompts_by_the_python_client_are_answered_side_by_side(
    cluster: LocalCluster, base_url: str, model: str
) -> None:
    prompts = ["Once upon a time", "The fox", "Once upon a time"]
    with cluster.client() as ours:
        alone = [ours.generate(prompt, **OPTIONS) for prompt in prompts]
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        whole = await client.completions.create(model=model, prompt=prompts, **OPTIONS)
        assert [choice.text for choice in whole.choices] == [answer.text for answer in alone]
        assert whole.usage is not None
        assert whole.usage.completion_tokens == sum(len(answer.tokens) for answer in alone)
        texts = [""] * len(prompts)
        stream = await client.completions.create(
            model=model, prompt=prompts, stream=True, **OPTIONS
        )
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == [answer.text for answer in alone]


def test_errors_of_chat_are_those_that_openais_client_knows(base_url: str, model: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError) as refused:
            create(model=model, messages=MESSAGES, response_format={"type": "json_object"})
        assert refused.value.param == "response_format"
        with pytest.raises(openai.NotFoundError) as unknown:
            create(model="nope", messages=MESSAGES, extra_headers={"x-request-id": "mine"})
        assert (unknown.value.code, unknown.value.request_id) == ("model_not_found", "mine")
        assert late_amid_its_answer(client, model).code == "deadline_exceeded"


def late_amid_its_answer(client: openai.OpenAI, model: str) -> openai.APIError:
    """What ends a stream whose time is over. One that a busy machine has not begun by then is
    refused, and asked for again with more time."""
    for timeout_s in LATE_S:
        late = {"ignore_eos": True, "timeout_s": timeout_s}
        try:
            stream = client.chat.completions.create(
                model=model, messages=MESSAGES, max_tokens=1900, stream=True, extra_body=late
            )
        except openai.InternalServerError as refused:
            if refused.code == "deadline_exceeded":
                continue
            raise
        with pytest.raises(openai.APIError) as ended:
            list(stream)
        assert not isinstance(ended.value, openai.APIStatusError), "it had begun"
        return ended.value
    raise AssertionError("no stream began in time")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_reads_a_streamed_chat(base_url: str, expected: Any) -> None:
    url = f"{base_url}/chat/completions"
    body = json.dumps({"messages": MESSAGES, "stream": True, **OPTIONS})
    command = ["curl", "-sN", url, "-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    *chunks, end = done.stdout.split("\n\n")[:-1]
    assert end == "data: [DONE]"
    deltas = [json.loads(c.removeprefix("data: "))["choices"][0]["delta"] for c in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == expected.text


@pytest.fixture(scope="module")
def npm_openai() -> Path:
    """A directory with OpenAI's npm package in it, installed once and kept."""
    return npm_packages(NPM)


def test_openais_client_for_node_gets_what_grpc_gets(
    cluster: LocalCluster, npm_openai: Path, base_url: str, model: str, expected: Any
) -> None:
    command = ["node", str(NPM / "drive.cjs"), str(npm_openai), base_url, model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["listed"] == [model]
    assert got["chat"]["choices"][0]["message"]["content"] == expected.text
    assert got["chat"]["usage"]["completion_tokens"] == len(expected.tokens)
    *chunks, last = got["chunks"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert deltas[0]["content"]
    assert "".join(delta.get("content", "") for delta in deltas) == expected.text
    assert last["usage"] == got["chat"]["usage"]
    assert got["gathered"]["content"] == expected.text
    with cluster.client() as ours:
        alone = [
            ours.generate(prompt, **OPTIONS).text for prompt in ("Once upon a time", "The fox")
        ]
    assert got["texts"] == alone
    assert [choice["text"] for choice in got["completion"]["choices"]] == alone
    refused = got["refused"]
    assert refused["tools"]["name"] == "BadRequestError"
    assert (refused["tools"]["status"], refused["tools"]["param"]) == (400, "tools")
    assert (refused["model"]["name"], refused["model"]["code"]) == (
        "NotFoundError",
        "model_not_found",
    )
    assert refused["late"]["code"] == "deadline_exceeded"
    assert refused["late"]["requestID"] == "late-one"
