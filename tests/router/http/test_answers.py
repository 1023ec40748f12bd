"""Answers over HTTP are those of the router, whole or as they come; errors have their status."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import accumulate
from typing import Any

import pytest

from tests.router.http.asking import PATH, decoded, events, http_cluster
from twolane.router.config import AdmissionConfig, LimitsConfig, RouterConfig
from twolane.router.testing.client import ask, message
from twolane.router.testing.rows import expected_answer
from twolane.router.text.codec import TextCodec

IDS: dict[str, Any] = {"prompt": [1, 2], "max_tokens": 5, "temperature": 0}


async def test_a_whole_answer_has_openais_shape_and_the_routers_tokens() -> None:
    async with http_cluster() as (client, _, _):
        before = int(time.time())
        response = await client.post(PATH, json={**IDS, "return_token_ids": True})
        answer = response.json()
        assert response.status_code == 200
        assert answer.pop("id") == f"cmpl-{response.headers['x-request-id']}"
        assert before <= answer.pop("created") <= time.time()
        assert answer == {
            "object": "text_completion",
            "model": "fake",
            "choices": [
                {
                    "index": 0,
                    "text": "",
                    "logprobs": None,
                    "finish_reason": "length",
                    "token_ids": expected_answer([1, 2], 5),
                }
            ],
            "usage": {
                "prompt_tokens": 2,
                "completion_tokens": 5,
                "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }


async def test_a_stream_brings_each_token_as_it_comes_then_reason_usage_and_done() -> None:
    async with http_cluster() as (client, _, cluster):
        decode = cluster.workers["d0"]
        decode.freeze()  # until its first token, which the prefill worker brings, has been read
        asked = {**IDS, "stream": True, "return_token_ids": True}
        asked["stream_options"] = {"include_usage": True}
        async with client.stream("POST", PATH, json=asked) as response:
            lines = (line async for line in response.aiter_lines() if line)
            first = decoded(await anext(lines))
            decode.thaw()
            *chunks, usage, done = [first, *[decoded(line) async for line in lines]]
        assert first["choices"][0]["token_ids"] == expected_answer([1, 2], 1)
        assert done == "[DONE]"
        assert usage["choices"] == []
        assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (2, 5)
        choices = [chunk["choices"][0] for chunk in chunks]
        assert [token for choice in choices for token in choice["token_ids"]] == expected_answer(
            [1, 2], 5
        )
        reasons = [choice["finish_reason"] for choice in choices]
        assert reasons == [None] * (len(choices) - 1) + ["length"]
        assert {chunk["usage"] for chunk in chunks} == {None}
        assert len({chunk["id"] for chunk in (*chunks, usage)}) == 1


async def test_usage_of_every_event_counts_up() -> None:
    async with http_cluster(step_s=0.05) as (client, _, _):
        wants = {"include_usage": True, "continuous_usage_stats": True}
        asked = {**IDS, "return_token_ids": True, "stream_options": wants}
        *chunks, _, _ = await events(client, **asked)
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        told = [len(chunk["choices"][0]["token_ids"]) for chunk in chunks]
        assert counts == [*accumulate(told)]
        assert counts[-1] == 5


async def test_text_is_that_of_the_other_door_for_the_same_seed(codec: TextCodec) -> None:
    async with http_cluster(text=codec) as (client, server, _):
        asked = {"prompt": "Once upon", "max_tokens": 30, "seed": 7, "temperature": 1}
        mine = await ask(server.router, message("Once upon", max_tokens=30, seed=7, temperature=1))
        whole = (await client.post(PATH, json=asked)).json()
        *chunks, done = await events(client, **asked)
        assert whole["choices"][0]["text"] == mine.text
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == mine.text
        assert done == "[DONE]"


async def test_a_stop_string_ends_the_text_before_it(codec: TextCodec) -> None:
    async with http_cluster(text=codec) as (client, _, _):
        asked = {"prompt": "Once upon", "max_tokens": 60, "temperature": 0}
        text = (await client.post(PATH, json=asked)).json()["choices"][0]["text"]
        stop = text[10:13]
        (choice,) = (await client.post(PATH, json={**asked, "stop": [stop]})).json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == (text[: text.find(stop)], "stop")


async def test_log_probabilities_stand_beside_the_texts_of_their_tokens(codec: TextCodec) -> None:
    async with http_cluster(text=codec) as (client, _, _):
        asked = {
            "prompt": "Once upon", "max_tokens": 6, "seed": 7, "logprobs": 0,
            "return_token_ids": True,
        }  # fmt: skip
        (choice,) = (await client.post(PATH, json=asked)).json()["choices"]
        shown = choice["logprobs"]
        spelled = b"".join(codec.token_bytes(token) for token in choice["token_ids"])
        assert "".join(shown["tokens"]) == spelled.decode(errors="replace")
        assert shown["text_offset"] == [
            len("".join(shown["tokens"][:n])) for n in range(len(shown["tokens"]))
        ]
        assert shown["token_logprobs"] == [0.0] * 6, "a scripted worker is certain"
        *chunks, _ = await events(client, **asked, temperature=0)
        offsets = [n for chunk in chunks for n in chunk["choices"][0]["logprobs"]["text_offset"]]
        assert offsets == sorted(offsets)
        assert len(offsets) == 6


@pytest.mark.parametrize("timeout_s", ["1e308", "9.3e15", "3e8"])
async def test_deadline_in_ten_years_and_more_is_none(timeout_s: str) -> None:
    async with http_cluster() as (client, _, _):
        body = f'{{"prompt": [1, 2], "max_tokens": 5, "timeout_s": {timeout_s}}}'
        kind = {"Content-Type": "application/json"}
        response = await client.post(PATH, content=body, headers=kind)
        assert response.status_code == 200
        assert response.json()["usage"]["completion_tokens"] == 5


async def test_without_a_tokenizer_tokens_are_named_by_their_ids() -> None:
    async with http_cluster() as (client, _, _):
        (choice,) = (await client.post(PATH, json={**IDS, "logprobs": 1})).json()["choices"]
        expected = [f"token_id:{token}" for token in expected_answer([1, 2], 5)]
        assert choice["logprobs"]["tokens"] == expected


CONFIG = RouterConfig(
    limits=LimitsConfig(message_bytes=20_000, prompt_tokens=1500, prompt_bytes=1000, max_tokens=99),
)
BAD: list[tuple[dict[str, Any], int, str | None]] = [
    ({"prompt": []}, 400, "prompt"),
    ({"prompt": ""}, 400, "prompt"),
    ({"prompt": [1] * 1501}, 400, "prompt"),
    ({"prompt": "x" * 1001}, 400, "prompt"),
    ({"prompt": [1, 1000]}, 400, "prompt"),
    ({"prompt": [1], "max_tokens": 100}, 400, "max_tokens"),
    ({"prompt": [1] * 1030, "max_tokens": 99}, 400, "max_tokens"),  # more pages than there are
    ({"prompt": [1], "stop_token_ids": [1000]}, 400, "stop_token_ids"),
    ({"prompt": [1], "n": 2}, 400, "n"),
    ({"prompt": [1], "model": "nope"}, 404, "model"),
    ({"prompt": "x" * 30_000}, 413, None),
]


async def test_every_bad_request_gets_its_status_and_field_and_serving_goes_on(
    codec: TextCodec,
) -> None:
    async with http_cluster(config=CONFIG, text=codec, n_pages=70) as (client, _, _):
        for stream in (False, True):
            for fields, status, param in BAD:
                response = await client.post(PATH, json={**fields, "stream": stream})
                error = response.json()["error"]
                assert (response.status_code, error["param"]) == (status, param), fields
                assert error["message"]
            good = await client.post(PATH, json={**IDS, "return_token_ids": True})
            assert good.json()["choices"][0]["token_ids"] == expected_answer([1, 2], 5)


@pytest.mark.parametrize(
    ("method", "path", "kind", "status", "code"),
    [
        ("GET", "/nope", "application/json", 404, "not_found"),
        ("POST", "/v1/nope", "application/json", 404, "not_found"),
        ("GET", "/v1/chat/completions", "application/json", 405, "method_not_allowed"),
        ("GET", PATH, "application/json", 405, "method_not_allowed"),
        ("POST", PATH, "text/plain", 415, "unsupported_media_type"),
        ("POST", PATH, "application/json; charset=utf-8", 400, "invalid_request"),
        ("GET", "/v1/models/nope", "application/json", 404, "model_not_found"),
    ],
)
async def test_other_mistakes_are_told_in_the_same_shape(
    method: str, path: str, kind: str, status: int, code: str
) -> None:
    async with http_cluster() as (client, _, _):
        response = await client.request(method, path, content=b"x", headers={"content-type": kind})
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_what_exceeds_the_context_has_openais_code() -> None:
    async with http_cluster() as (client, _, _):
        (model,) = (await client.get("/v1/models")).json()["data"]
        context = model["max_model_len"]
        for asked in ({"prompt": [1] * context}, {"prompt": [1], "max_tokens": context}):
            response = await client.post(PATH, json=asked)
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_an_unknown_model_is_told_with_those_that_are_known() -> None:
    async with http_cluster() as (client, _, _):
        (known,) = (await client.get("/v1/models")).json()["data"]
        error = (await client.get("/v1/models/nope")).json()["error"]
        assert error["message"] == f"no worker serves 'nope'; known: {known['id']}"
    async with http_cluster("p0") as (client, _, _):  # without a worker that decodes
        error = (await client.get("/v1/models/nope")).json()["error"]
        assert error["message"] == "no worker serves 'nope'; known: none"


async def test_who_misses_a_path_is_told_those_that_there_are() -> None:
    async with http_cluster() as (client, _, _):
        misses = ("GET", "/nope"), ("POST", "/v1/nope"), ("POST", "/v1/models"), ("GET", PATH)
        for method, path in misses:
            text = (await client.request(method, path)).json()["error"]["message"]
            mistake, _, offered = text.partition(";")
            assert path in mistake
            assert method in mistake
            assert f"{method} {path}," not in offered
            named = re.findall(r"(GET|POST) (/[\w/]+)", text.partition(";")[2])
            assert ("POST", "/v1/chat/completions") in named
            for its, there in named:
                answer = await client.request(its, there, json={} if its == "POST" else None)
                assert answer.status_code not in (404, 405), there


async def test_a_full_queue_is_429_with_retry_after_and_a_deadline_504() -> None:
    config = RouterConfig(admission=AdmissionConfig(max_queued=1, extra_rows=0))
    async with http_cluster(config=config, decode_rows=1, step_s=0.05) as (client, server, _):
        await client.post(PATH, json=IDS)
        async with asyncio.TaskGroup() as tasks:
            long = {"prompt": [1], "max_tokens": 1900, "stream": True}
            async with client.stream("POST", PATH, json=long) as running:
                lines = running.aiter_lines()  # kept: its end is the client's
                await anext(lines)
                late = await client.post(PATH, json={**IDS, "timeout_s": 0.1})
                assert (late.status_code, late.json()["error"]["code"]) == (
                    504,
                    "deadline_exceeded",
                )
                assert late.headers["x-should-retry"] == "false", "its client has no time left"
                waiting = tasks.create_task(client.post(PATH, json=IDS))
                while server.router.status().requests_by_state["queued"] < 1:
                    await asyncio.sleep(0.01)
                for stream in (False, True):
                    refused = await client.post(PATH, json={**IDS, "stream": stream})
                    assert refused.status_code == 429
                    assert int(refused.headers["retry-after"]) >= 1
                    assert int(refused.headers["retry-after-ms"]) >= 100
                    assert refused.json()["error"]["type"] == "rate_limit_error"
            assert (await waiting).status_code == 200  # the client that left made room


async def test_no_worker_is_503_and_health_says_so() -> None:
    config = RouterConfig(admission=AdmissionConfig(unavailable_after_s=0.2), models=("fake",))
    async with http_cluster("p0", config=config) as (client, _, cluster):
        assert (await client.get("/health")).status_code == 503
        response = await client.post(PATH, json=IDS)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
        assert response.json()["error"]["type"] == "server_error"
    async with http_cluster("b0") as (client, _, cluster):
        async with asyncio.timeout(30.0):
            while (await client.get("/health")).status_code != 200:
                await asyncio.sleep(0.02)
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert (model["id"], model["object"], model["max_model_len"]) == ("fake", "model", 2048)
        assert (await client.get("/v1/models/fake")).json() == model
        cluster.workers["b0"].kill()
        async with asyncio.timeout(30.0):
            while (await client.get("/health")).status_code != 503:
                await asyncio.sleep(0.05)


async def test_what_fails_amid_a_stream_is_its_last_event_in_place_of_done() -> None:
    async with http_cluster(step_s=0.05) as (client, server, _):
        long = {"prompt": [1], "max_tokens": 1900, "stream": True}
        async with client.stream("POST", PATH, json=long) as response:
            lines = response.aiter_lines()
            await anext(lines)
            server.router.cancel(response.headers["x-request-id"])
            last = [line async for line in lines if line][-1]
        assert '"code":"cancelled"' in last
        whole = asyncio.create_task(client.post(PATH, json={**long, "stream": False}))
        while not server.router.status().requests:
            await asyncio.sleep(0.01)
        server.router.cancel(server.router.status().requests[0].request_id)
        assert (await whole).status_code == 499
