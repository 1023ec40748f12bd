"""Several prompts in one call of /v1/completions: an answer each, or one error for all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.router.freed import until_free
from tests.router.http.asking import PATH, decoded, events, http_cluster
from twolane.router.config import AdmissionConfig, HttpConfig, RouterConfig, ServerConfig
from twolane.router.testing.rows import expected_answer
from twolane.router.text.codec import TextCodec

PROMPTS = [[1, 2], [3, 4, 5], [6]]
ASKED: dict[str, Any] = {
    "prompt": PROMPTS, "max_tokens": 5, "temperature": 0, "return_token_ids": True,
}  # fmt: skip
LONG: dict[str, Any] = {**ASKED, "max_tokens": 1900}


async def test_a_whole_answer_has_a_choice_for_each_prompt_and_all_their_tokens_in_usage() -> None:
    async with http_cluster() as (client, _, _):
        answer = (await client.post(PATH, json=ASKED)).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert [choice["token_ids"] for choice in answer["choices"]] == [
            expected_answer(prompt, 5) for prompt in PROMPTS
        ]
        usage = answer["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (6, 15)
        assert usage["total_tokens"] == 21


async def test_texts_are_those_of_each_prompt_alone(codec: TextCodec) -> None:
    async with http_cluster(text=codec) as (client, _, _):
        asked = {"max_tokens": 20, "seed": 5, "logprobs": 1}
        prompts = ["Once upon", "a time", "Once upon"]
        alone = [(await client.post(PATH, json={**asked, "prompt": p})).json() for p in prompts]
        together = (await client.post(PATH, json={**asked, "prompt": prompts})).json()
        for at, answer in enumerate(alone):
            (choice,) = answer["choices"]
            assert together["choices"][at] == {**choice, "index": at}


async def test_a_stream_brings_all_choices_at_once_each_by_its_index() -> None:
    async with http_cluster(step_s=0.02) as (client, _, _):
        *chunks, usage, done = await events(client, **ASKED, stream_options={"include_usage": True})
        assert done == "[DONE]"
        assert usage["usage"]["completion_tokens"] == 15
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        for at, prompt in enumerate(PROMPTS):
            mine = [choice for choice in choices if choice["index"] == at]
            assert [t for c in mine for t in c["token_ids"]] == expected_answer(prompt, 5)
            assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["length"]
        began = [[c["index"] for c in choices].index(at) for at in range(3)]
        first_end = next(n for n, choice in enumerate(choices) if choice["finish_reason"])
        assert max(began) < first_end, "one after the other"
        assert len({chunk["id"] for chunk in (*chunks, usage)}) == 1


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_bad_prompt_is_named_and_ends_the_others_before_anything_is_answered(
    stream: bool,
) -> None:
    async with http_cluster(step_s=0.02) as (client, server, cluster):
        asked = {**LONG, "prompt": [[1, 2], [3], [4, 1000]], "stream": stream}
        response = await client.post(PATH, json=asked)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "prompt[2]"
        await until_free(server, cluster)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_prompts_for_which_the_queue_has_no_room_are_refused_together(stream: bool) -> None:
    config = RouterConfig(admission=AdmissionConfig(max_queued=1, extra_rows=0))
    async with http_cluster(config=config, decode_rows=1) as (client, server, cluster):
        response = await client.post(PATH, json={**LONG, "stream": stream})
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        await until_free(server, cluster)


async def test_a_prompt_that_fails_amid_a_stream_ends_it_with_one_error() -> None:
    async with http_cluster(step_s=0.02) as (client, server, cluster):
        async with client.stream("POST", PATH, json={**LONG, "stream": True}) as response:
            lines = response.aiter_lines()
            await anext(lines)
            server.router.cancel(response.headers["x-request-id"] + "-1")
            rest = [decoded(line) async for line in lines if line]
        assert rest[-1]["error"]["code"] == "cancelled"
        assert all("error" not in event for event in rest[:-1])
        await until_free(server, cluster)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_hangs_up_leaves_none_of_its_prompts(stream: bool) -> None:
    async with http_cluster(step_s=0.02) as (client, server, cluster):
        call = asyncio.create_task(client.post(PATH, json={**LONG, "stream": stream}))
        async with asyncio.timeout(30.0):
            while len(cluster.workers["d0"].rows) < 3:
                await asyncio.sleep(0.01)
        call.cancel()
        await until_free(server, cluster)
        assert server.router.status().counters["cancelled"] == 3


async def test_more_prompts_than_the_door_takes_are_refused_by_name() -> None:
    place = ServerConfig(stop_grace_s=0.2, metrics_port=None, http=HttpConfig(prompts=2))
    async with http_cluster(server_config=place) as (client, _, _):
        response = await client.post(PATH, json=ASKED)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "prompt")
        assert "at most 2" in error["message"]
        assert (await client.post(PATH, json={**ASKED, "prompt": PROMPTS[:2]})).status_code == 200
